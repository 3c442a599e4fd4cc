"""What the compilers of real GPUs make of the kernels, read on a machine that has none of these GPUs.

Mesa's driver for AMD, RADV, compiles for any GPU that it knows, and its driver for Intel, ANV, on intel_device.c. Those
of NVIDIA's, Qualcomm's and Apple's GPUs are in a newer Mesa, which mesa.sh unpacks. With the Vulkan driver of
null_device.c around them, wgpu opens a device that runs nothing. The compiler's statistics and machine code are read
from what is printed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rnn_engine.forward.forward_pass import candidate_kernels
from rnn_engine.forward.step import StepLimits
from rnn_engine.forward.tuning import tuning_for
from rnn_engine.gpu import DeviceInfo
from rnn_engine.versions.v7.layout import AdapterRanks
from rnn_engine_shaders import specialise
from tests.support.every_shader import shaders_of, shaders_of_variant
from tests.support.models import deep_embedded, tiny_shape
from tests.support.older_models import tiny_v4, tiny_v5, tiny_v6

FAMILIES: Final[Mapping[str, str]] = {
    "vega10": "GCN5: Vega 56 and 64",
    "navi10": "RDNA1: RX 5700",
    "navi21": "RDNA2: RX 6800 and 6900",
    "navi31": "RDNA3: RX 7900",
    "gfx1151": "RDNA3.5: Strix Halo, an APU",
    "gfx1201": "RDNA4: RX 9070",
    "tgl": "Intel's Gen12: Iris Xe",
    "dg2": "Intel's Xe-HPG: Arc A770",
    "bmg": "Intel's Xe2: Arc B580",
}
"""Families of GPUs, by the names of Mesa's drivers."""

INTEL: Final = {"tgl": "Iris", "dg2": "Arc", "bmg": "Arc"}

_NVK: Final = {"NVK_I_WANT_A_BROKEN_VULKAN_DRIVER": "1"}
UNPACKED: Final[Mapping[str, tuple[str, str, Mapping[str, str]]]] = {
    "turing": ("NVIDIA", "nouveau", {"NOUVEAU_CHIPSET": "164", **_NVK}),
    "ampere": ("NVIDIA", "nouveau", {"NOUVEAU_CHIPSET": "172", **_NVK}),
    "ada": ("NVIDIA", "nouveau", {"NOUVEAU_CHIPSET": "192", **_NVK}),
    "adreno-660": ("Adreno", "freedreno", {"FD_GPU_ID": "660"}),
    "adreno-740": ("Adreno", "freedreno", {"FD_GPU_ID": "740"}),
    "m1": ("Apple", "asahi", {}),
}
"""Families whose drivers mesa.sh unpacks, with the name of their devices, of the driver, and what it reads."""
MESA_FOLDER: Final = "MESA_FOLDER"  # the variable of the environment with the folder that mesa.sh has made


@dataclass(frozen=True, slots=True)
class Loop:
    """The innermost loop of a kernel that loads most, in machine code; the whole kernel if it has no loop."""

    instructions: int
    loads: int  # from device memory, by each thread
    bytes: int  # that these load
    bytes_in_flight: int  # the most that a thread has asked for at once
    vector: int  # instructions of all lanes that compute
    workgroup_loads: int  # loads from workgroup memory, by each thread


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiler says of a kernel."""

    registers: int  # vector registers of a thread; on Intel those that hold values at once
    waves: int  # that a SIMD unit can hold at once; on Intel always 8
    spilled: int  # registers, vector and scalar
    scratch_bytes: int  # of a wave, in device memory
    workgroup_bytes: int  # of LDS
    instructions: int
    loop: Loop | None  # None if the machine code was not read, or if the driver can't show that of this family


def chosen_kernels(family: str = "navi31") -> dict[str, str]:
    """Return the WGSL of each kernel that the fixed choices for GPUs of `family` run, by a name of its own.

    These are the matmuls of every weight format, and the other kernels of every version for heads of 64 rows.
    """
    name = UNPACKED[family][0] if family in UNPACKED else INTEL.get(family, "AMD")
    tuning = tuning_for(DeviceInfo(0, name, "discrete", "none", "none"), can_broadcast=True)
    kernels: dict[str, str] = {}
    streams = (*tuning.matmuls, *tuning.blocks, *tuning.packed, *tuning.normed, tuning.few_rows)
    two, kept = {"FLOATS_FROM": 64, "WIDE": False}, {"MIXES": 6, "KEEPS_DIFFERENCE": True}
    for variant, constants, includes, suffix in (
        *((each, {}, {}, "") for each in (*streams, tuning.tiled, tuning.packed_tiled) if each is not None),
        *((each, two, {"one_format": "two_formats"}, " and f16") for each in (tuning.blocks[0], tuning.normed[-1])),
        (tuning.normed[0], kept, {"mixes_not_kept": "keep_mixes"}, ", mixes kept"),
    ):
        for weights, text in shaders_of_variant(variant, constants, includes, tuning):
            kernels[f"{variant}, {weights}{suffix}"] = text
    v7 = tiny_shape(width=256, head_size=64, ranks=AdapterRanks(w=128, a=128, v=96, g=480))  # ranks of 7.2B
    others: dict[str, str] = {}  # name by text
    for shape in (v7, deep_embedded(v7), tiny_v6(width=256, head_size=64), tiny_v5(width=256, head_size=64), tiny_v4()):
        for weights in ("f16", "int8,activations=int8"):
            for name, text in shaders_of(shape, weights, tuning, ""):
                if name.split()[0] not in ("matmul", "matmul_tiled"):
                    others.setdefault(text, f"{name.split()[0]}, {shape.version}")
    for one in [one for vocab in (65_536, 4096) for one in candidate_kernels(tuning, vocab, 128, masks=True)]:
        own = {**StepLimits(8, 8, 8, 128).constants(), **one.constants}
        others[specialise("candidates", own, one.includes).text] = f"candidates, {one.num_parts} of {own['VOCAB']}"
    for text, name in others.items():
        kernels[next(each for n in count(1) if (each := f"{name} #{n}" if n > 1 else name) not in kernels)] = text
    return kernels


class UnavailableError(Exception):
    """A program or driver that the compilers need is not on this machine."""


def compile_for(
    family: str, shaders: Mapping[str, str], *, with_loops: bool = True, trusted: bool = False
) -> dict[str, Compiled]:
    """Compile `shaders`, name -> WGSL, for the GPUs of `family`, and return what the compiler says of each.

    `with_loops` also reads the machine code, which takes twice as long. `trusted` shaders have no checks of bounds.
    Raises UnavailableError if this machine lacks gcc or Mesa's driver.
    """
    with TemporaryDirectory() as folder:
        own = {
            **os.environ,
            **dict.fromkeys(("INTEL_DEVICE", "RADV_FORCE_FAMILY"), family),
            "LD_PRELOAD": f"{folder}/intel_device.so",
            "MESA_SHADER_CACHE_DISABLE": "true",
            "NULL_DEVICE_DRIVER": f"libvulkan_{'intel' if family in INTEL else 'radeon'}.so",
            "NULL_DEVICE_PRINTS": "2" if with_loops else "1",
            "VK_DRIVER_FILES": f"{folder}/driver.json",
            **({"NULL_DEVICE_TRUSTS": "1"} if trusted else {}),
        }
        _build_driver(folder)
        command = [sys.executable, "-m", "tools.gpu_compilers.compile"]
        if family in UNPACKED:
            _, driver, settings = UNPACKED[family]
            if MESA_FOLDER not in os.environ:
                raise UnavailableError(f"{MESA_FOLDER} is not set to a folder that tools/gpu_compilers/mesa.sh made")
            library = f"{os.environ[MESA_FOLDER]}/usr/lib/x86_64-linux-gnu"
            own |= {"NULL_DEVICE_DRIVER": f"{library}/libvulkan_{driver}.so", "LD_PRELOAD": "", **settings}
            shims = f"{folder}/ada_device.so:{library}/lib{driver}_noop_drm_shim.so"
            command = [f"{library}/ld-linux-x86-64.so.2", "--library-path", library, "--preload", shims, *command]
        texts = json.dumps(list(shaders.values()))
        done = subprocess.run(command, env=own, input=texts, capture_output=True, text=True, errors="replace")
    if "finds no GPU" in done.stderr:
        raise UnavailableError("Mesa's driver is missing (on Debian or Ubuntu: mesa-vulkan-drivers)")
    if "Unknown family" in done.stderr:
        raise UnavailableError(f"Mesa's driver for AMD is too old to know {family}")
    if done.returncode:
        raise RuntimeError(f"the kernels were not compiled for {family}: {done.stderr[-2000:]}")
    printed = re.split(r"^@@ \d+$", done.stderr, flags=re.MULTILINE)[1:]
    return {name: _parse(text) for name, text in zip(shaders, printed, strict=True)}


def _build_driver(folder: str) -> None:
    """Build the C files in `folder`, and write the manifest driver.json. Raises UnavailableError."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        raise UnavailableError("there is no Linux with a C compiler (on Debian or Ubuntu: gcc)")
    for name in ("null_device", "intel_device", "ada_device"):
        source = str(Path(__file__).with_name(f"{name}.c"))
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", f"{folder}/{name}.so", source, "-ldl"], check=True)
    icd = {"library_path": f"{folder}/null_device.so", "api_version": "1.3.0"}
    Path(folder, "driver.json").write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))


_SPILLS: Final = ("Spilled VGPRs", "Spilled SGPRs", "Spill Count", "Spills to memory", "Spills", "STP Count")


def _parse(printed: str) -> Compiled:
    """Parse what null_device.c prints of one kernel: the driver's statistics, and its machine code."""
    statistics, _, code = printed.partition("disasm:")
    figures = Counter({name: int(value) for name, value in re.findall(r"^([\w ]+): (\d+)$", statistics, re.MULTILINE)})
    lines = [line.split(";")[0].strip() for line in code.splitlines()]
    return Compiled(
        registers=sum(figures[name] for name in ("VGPRs", "Max live registers", "Number of GPRs", "GPRs")),
        waves=figures["Subgroups per SIMD"] or 8,
        spilled=sum(figures[name] for name in _SPILLS),
        scratch_bytes=figures["Scratch size"] + figures["Scratch Memory Size"],
        workgroup_bytes=figures["LDS size"] + figures["Workgroup Memory Size"],
        instructions=sum(figures[f"Instruction{ending}"] for ending in ("s", " Count", " count")),
        loop=_find_loop(lines) if re.search("s_endpgm|EOT", code) else None,
    )


_LOAD_BYTES: Final = (  # of a load, by the ending of its instruction
    dict.fromkeys(("ubyte", "sbyte", "u8", "i8"), 1)
    | dict.fromkeys(("ushort", "sshort", "short", "u16", "i16", "b16"), 2)
    | {"dword": 4, "b32": 4, "dwordx2": 8, "b64": 8, "dwordx3": 12, "b96": 12, "dwordx4": 16, "b128": 16}
)
_LOAD: Final = re.compile(r"(?:buffer|global|flat)_load_(?:d16_)?(?:hi_)?([a-z0-9]+)")
_INTEL_LOAD: Final = re.compile(
    r"ugm MsgDesc: \( load(?:_cmask)?, a\d+, d(\d+)\w*, V(\d+)(, transpose)?.*\$(\d+)"
    r"|Msg.*untyped surface read, Surface = (?!254)\d+, \w+, Mask = 0x(\w).*\$(\d+)"
)
_WAIT: Final = re.compile(r"s_waitcnt.*vmcnt\((\d+)\)|s_wait_loadcnt\w* (0x[0-9a-f]+)")


def _find_loop(lines: Sequence[str]) -> Loop:
    loops = [_measure(lines[start : end + 1]) for start, end in _innermost(lines)]
    return max(loops, key=lambda loop: loop.bytes, default=_measure(lines))


def _innermost(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each loop that has no other within."""
    labels = {line[:-1]: number for number, line in enumerate(lines) if re.fullmatch(r"(BB|LABEL)\d+:", line)}
    loops = []
    for number, line in enumerate(lines):
        target = re.match(r"(?:s_c?branch\w* |(?:\(.*\) )?while.*JIP: +)(\w+)", line)
        if target and labels[target[1]] < number:
            loops.append((labels[target[1]], number))
    for start, end in loops:
        if not any(start <= other[0] and other[1] <= end for other in loops if other != (start, end)):
            yield start, end


def _measure(lines: Sequence[str]) -> Loop:
    code = [line for line in lines if line and not re.search(r":$|MsgDesc|^(START|END) B|^sync nop", line)]
    loaded = [size for line in lines if (size := _loaded(line)[0])]
    in_flight: list[tuple[int, str]] = []
    most = 0
    for line in (*lines, *lines):  # twice, since loads of one turn may be waited for in the next one
        in_flight = [each for each in in_flight if f"{each[1]}.dst" not in line]
        if _loaded(line)[0]:
            in_flight.append(_loaded(line))
            most = max(most, sum(size for size, _ in in_flight))
        elif found := _WAIT.match(line):
            left = int(found[1] or found[2], 0)
            in_flight = in_flight[len(in_flight) - left :] if left < len(in_flight) else in_flight
    vector = sum(line.startswith("v_") for line in code)
    workgroup_loads = sum(line.startswith(("ds_load", "ds_read")) for line in code)
    return Loop(len(code), len(loaded), sum(loaded), most, vector, workgroup_loads)


def _loaded(line: str) -> tuple[int, str]:
    """Return how many bytes a line loads from device memory, and on Intel the slot by which they are waited for."""
    if found := _LOAD.match(line):
        return _LOAD_BYTES[found[1]], "none"
    if found := _INTEL_LOAD.search(line):
        bits, count, is_shared, slot, mask, other_slot = found.groups()
        if mask:
            return 4 * (4 - int(mask, 16).bit_count()), f"${other_slot}"
        return int(bits) // 8 * (1 if is_shared else int(count)), f"${slot}"
    return 0, ""
