"""Find a device for WebGPU; if there is none, install a driver or print how to."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.setup import mesa
from tools.setup.environment import Environment
from tools.setup.shell import SetupError, Shell

PROBE = """
import json, wgpu
infos = [adapter.info for adapter in wgpu.gpu.enumerate_adapters_sync()]
print(json.dumps([[i["device"], i["adapter_type"], i["backend_type"], i["description"]] for i in infos]))
"""
DRIVER_FOLDERS = ("/etc/vulkan", "/usr/local/share/vulkan", "/usr/share/vulkan", "~/.local/share/vulkan")
DRIVER_VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES", "VK_LOADER_DRIVERS_DISABLE")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A WebGPU device, as wgpu describes it."""

    device: str
    kind: str  # "DiscreteGPU", "IntegratedGPU", "CPU", ...
    backend: str  # "Vulkan", "Metal", "D3D12", "OpenGL"
    description: str  # the driver and its version

    @property
    def is_slow_mesa(self) -> bool:
        """True for Mesa's software driver in a version too old to run compute kernels well."""
        version = re.search(r"Mesa (\d+)", self.description)
        return self.kind == "CPU" and version is not None and int(version[1]) < mesa.FAST_VERSION


def find_device(environment: Environment, shell: Shell, *, required: bool) -> str:
    """Find a device, and return its name for the engine: "auto", or "cpu" if there is none and none is required.

    If there is no device, installs a software driver, unless that needs a password. Raises SetupError if a device is
    required and there is none even then.
    """
    record = environment.folder / "rnn-engine-device.json"
    if _recorded(record) == _fingerprint():
        return "auto"
    adapters = _probe(environment, shell)
    if not adapters and mesa.can_install(shell):
        try:
            mesa.install(shell)
        except SetupError as error:
            shell.say(f"that failed: {error}")
        adapters = _probe(environment, shell)
    if adapters:
        _describe(adapters[0], shell)
        record.write_text(json.dumps({"drivers": _fingerprint()}) + "\n")
        return "auto"
    if required:
        raise SetupError(f"no Vulkan device was found, and the tests need one.\n{mesa.advice(shell)}")
    shell.say(f"no Vulkan device was found; going on with the processor.\n{mesa.advice(shell)}")
    return "cpu"


def _probe(environment: Environment, shell: Shell) -> list[Adapter]:
    """Return all adapters that can run compute shaders. Asks in another process, since a broken driver may crash."""
    output = shell.read(str(environment.python), "-c", PROBE)
    adapters = [Adapter(*row) for row in json.loads(output)] if output else []
    return [adapter for adapter in adapters if adapter.backend != "OpenGL"]


def _describe(adapter: Adapter, shell: Shell) -> None:
    shell.say(f"found {adapter.device} ({adapter.backend}; {adapter.description})")
    if adapter.is_slow_mesa:
        shell.say(f"Mesa {mesa.FAST_VERSION} or newer runs the same kernels many times faster.\n{mesa.advice(shell)}")


def _recorded(path: Path) -> object:
    try:
        return json.loads(path.read_text())["drivers"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _fingerprint() -> str:
    """Return a hash of the installed Vulkan drivers. It changes when one is added, removed or replaced."""
    facts = [f"{name}={os.environ.get(name)}" for name in DRIVER_VARIABLES]
    facts += [f"{path} {path.stat().st_mtime_ns}" for path in _driver_files()]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _driver_files() -> Iterator[Path]:
    for folder in DRIVER_FOLDERS:
        yield from sorted(Path(folder).expanduser().glob("icd.d/*.json"))
