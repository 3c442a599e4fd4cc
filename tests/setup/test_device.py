"""The device that the set-up chooses, on machines with and without a driver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fake_shell import FakeShell
from tools.setup import device
from tools.setup.environment import Environment
from tools.setup.shell import SetupError

GPU = ["A GPU", "DiscreteGPU", "Vulkan", "its driver 1.0"]
OPENGL = ["A GPU", "DiscreteGPU", "OpenGL", "its driver 1.0"]
OLD_SOFTWARE = ["llvmpipe", "CPU", "Vulkan", "Mesa 22.3.6 (LLVM 15.0.6)"]
NEW_SOFTWARE = ["llvmpipe", "CPU", "Vulkan", "Mesa 25.0.7 (LLVM 19.1.7)"]


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that stands in for the system's folders of drivers."""
    monkeypatch.setattr(device, "DRIVER_FOLDERS", (str(tmp_path / "vulkan"),))
    (tmp_path / ".venv").mkdir()
    return tmp_path / "vulkan" / "icd.d"


def machine(*probes: list[list[str]], prefix: tuple[str, ...] | None = None) -> FakeShell:
    """Return a machine on which successive searches for adapters find `probes`; the last one is repeated."""
    outputs = [json.dumps(probe) for probe in probes]
    return FakeShell(prefix=prefix, answers={"wgpu": lambda: outputs.pop(0) if len(outputs) > 1 else outputs[0]})


def find(root: Path, shell: FakeShell, *, required: bool = False) -> str:
    return device.find_device(Environment(root, shell), shell, required=required)


def test_a_gpu_is_used(tmp_path: Path, drivers: Path) -> None:
    shell = machine([OPENGL, GPU])
    assert find(tmp_path, shell) == "auto"
    assert shell.said == ["found A GPU (Vulkan; its driver 1.0)"]


def test_the_next_call_does_not_look_again_until_a_driver_changes(tmp_path: Path, drivers: Path) -> None:
    assert find(tmp_path, machine([GPU])) == "auto"
    assert find(tmp_path, machine([])) == "auto"
    drivers.mkdir(parents=True)
    (drivers / "new.json").touch()
    assert find(tmp_path, machine([])) == "cpu"


def test_as_root_a_software_driver_is_installed(tmp_path: Path, drivers: Path) -> None:
    shell = machine([], [NEW_SOFTWARE], prefix=())
    assert find(tmp_path, shell, required=True) == "auto"
    assert any(
        command.endswith("install --yes --no-install-recommends mesa-vulkan-drivers libvulkan1")
        for command in shell.commands
    )


def test_without_root_serving_goes_on_with_the_cpu_and_says_what_to_install(tmp_path: Path, drivers: Path) -> None:
    shell = machine([OPENGL])
    assert find(tmp_path, shell) == "cpu"
    assert shell.commands == []
    assert "apt-get install mesa-vulkan-drivers libvulkan1" in shell.said[-1]


def test_without_root_what_needs_a_device_fails(tmp_path: Path, drivers: Path) -> None:
    with pytest.raises(SetupError, match="apt-get install mesa-vulkan-drivers libvulkan1"):
        find(tmp_path, machine([]), required=True)


def test_a_failed_installation_leaves_serving_to_the_cpu(tmp_path: Path, drivers: Path) -> None:
    shell = machine([], prefix=())
    shell.failing = ("install --yes",)
    assert find(tmp_path, shell) == "cpu"


def test_a_probe_that_crashes_counts_as_no_device(tmp_path: Path, drivers: Path) -> None:
    assert find(tmp_path, FakeShell(prefix=None)) == "cpu"


@pytest.mark.parametrize(("adapter", "hint"), [(OLD_SOFTWARE, True), (NEW_SOFTWARE, False), (GPU, False)])
def test_an_old_software_driver_is_pointed_out(tmp_path: Path, drivers: Path, adapter: list[str], hint: bool) -> None:
    shell = machine([adapter])
    find(tmp_path, shell)
    assert any("many times faster" in line for line in shell.said) is hint
