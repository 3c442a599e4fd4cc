"""Published figures of GPUs, from which `cost` predicts how long kernels take.

Nothing here was measured by this project. Units, clocks and memory were compared in November 2026 with copies of pages
of makers, reviews and tables of specifications, which docs/performance.md lists. `unknown_gpu` stands for GPUs that are
not in the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from rnn_engine.gpu import DeviceInfo


@dataclass(frozen=True, slots=True)
class Gpu:
    """The published figures of a GPU.

    A unit is what its maker calls a compute unit (AMD), streaming multiprocessor (NVIDIA), Xe core (Intel) or core
    (Apple). `registers` are those of a thread while a unit holds as many threads as it can.
    """

    name: str  # the end of the device's name, without what is in brackets
    memory: float  # bytes a second
    units: int
    lanes: int  # of a unit; a lane runs one instruction a clock
    clock: float  # Hz
    threads: int  # that a unit can hold at once
    registers: int

    @property
    def instructions(self) -> float:
        """The most instructions that all lanes together run in a second. A multiply-add is one."""
        return self.units * self.lanes * self.clock


def _rdna(name: str, gigabytes: float, units: int, gigahertz: float, *, registers: int = 64) -> Gpu:
    """Return a GPU of AMD's RDNA: two SIMD units of 32 lanes and 16 waves each in a compute unit."""
    return Gpu(name, 1e9 * gigabytes, units, 64, 1e9 * gigahertz, 1024, registers)


def _gcn(name: str, gigabytes: float, units: int, gigahertz: float) -> Gpu:
    """Return a GPU of AMD's GCN or CDNA: 40 waves of 64 lanes, and 256 KiB of registers in a compute unit."""
    return Gpu(name, 1e9 * gigabytes, units, 64, 1e9 * gigahertz, 2560, 24)


def _nvidia(name: str, gigabytes: float, units: int, gigahertz: float, threads: int) -> Gpu:
    """Return a GPU of NVIDIA: 128 lanes and 65,536 registers in a multiprocessor."""
    return Gpu(name, 1e9 * gigabytes, units, 128, 1e9 * gigahertz, threads, 65_536 // threads)


def _intel(name: str, gigabytes: float, units: int, gigahertz: float) -> Gpu:
    """Return a GPU of Intel: 128 lanes in an Xe core, or in 16 execution units of the generation before.

    Eight threads of 16 lanes run on each of 8 vector engines. A thread's 128 registers do not depend on their number.
    """
    return Gpu(name, 1e9 * gigabytes, units, 128, 1e9 * gigahertz, 1024, 128)


def _apple(name: str, gigabytes: float, units: int, teraflops: float) -> Gpu:
    """Return a GPU of Apple, which publishes operations a second in place of a clock.

    Lanes are from github.com/philipturner/metal-benchmarks. It reports 768 to 3,072 threads and 384 KB of registers,
    which Apple does not publish; less is assumed.
    """
    return Gpu(name, 1e9 * gigabytes, units, 128, 1e12 * teraflops / (2 * 128 * units), 1024, 64)


GPUS: Final[tuple[Gpu, ...]] = (
    # AMD: compute units and boost clock. Memory of processors: the clock that the comment names, times its width.
    _rdna("Radeon 780M", 89.6, 12, 2.7, registers=64),  # DDR5-5600, 128 bits
    _rdna("Radeon 8060S", 256, 40, 2.9, registers=96),  # LPDDR5X-8000, 256 bits
    _rdna("Radeon RX 6600", 224, 28, 2.491),
    _rdna("Radeon RX 7900 XTX", 960, 96, 2.5, registers=96),
    _rdna("Radeon RX 9070", 640, 56, 2.52, registers=96),
    _gcn("Radeon RX Vega 64", 483.8, 64, 1.546),
    _gcn("Instinct MI100", 1228.8, 120, 1.502),
    # NVIDIA: multiprocessors and boost clock. Threads of a multiprocessor depend on the generation.
    _nvidia("GeForce RTX 3060", 360, 28, 1.777, 1536),
    _nvidia("GeForce RTX 4090", 1008, 128, 2.52, 1536),
    _nvidia("H100 80GB HBM3", 3352, 132, 1.98, 2048),
    # Intel: Xe cores and the greatest clock.
    _intel("Iris Xe", 68.3, 6, 1.35),  # Core i7-1185G7 with LPDDR4X-4267, 128 bits
    _intel("Arc 140V", 136.5, 8, 2.05),  # Core Ultra 9 288V with LPDDR5X-8533, 128 bits
    _intel("Arc B580", 456, 20, 2.67),
    # Apple's press releases. M1's memory is its clock times its width; operations are those of 128 lanes a core.
    _apple("Apple M1", 68.25, 8, 2.6),
    _apple("Apple M1 Max", 400, 32, 10.4),
    _apple("Apple M2", 100, 10, 3.6),
    _apple("Apple M2 Ultra", 800, 76, 27.2),
)


def gpu_of(info: DeviceInfo) -> Gpu | None:
    """Return the published figures of the device `info`, or None if `GPUS` lacks it."""
    name = re.sub(r"\([^)]*\)", "", info.name).strip().removesuffix(" Graphics")
    words = " ".join(name.split())
    return next((gpu for gpu in GPUS if f" {words}".endswith(f" {gpu.name}")), None)


def unknown_gpu(kind: str) -> Gpu:
    """Return a GPU of the table for a device of `kind` that is not in it: a small one of that kind."""
    return next(gpu for gpu in GPUS if gpu.name == ("GeForce RTX 3060" if kind == "discrete" else "Radeon 780M"))
