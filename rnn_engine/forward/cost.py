"""Predicted times of kernels: they order the search for kernels, and stand beside measured times.

The search only needs the order, since it measures every variant that is predicted to be nearly the fastest. The
predictions follow from a GPU's published figures, instructions counted in compiled kernels, and the assumptions named
below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.step import StepSize
from rnn_engine.forward.variants import MatMulVariant, MatMulWork, StreamVariant, TiledVariant
from rnn_engine.forward.weight_formats import COLUMNS_AT_ONCE, INPUT_BLOCK
from rnn_engine.gpu import DeviceInfo, Dispatch

# Published figures of GPUs, from which the times of kernels are predicted.
#
# Nothing in the table was measured by this project. Units, clocks and memory were compared in November 2026 with copies
# of pages of makers, reviews and tables of specifications, which docs/performance.md lists. `unknown_gpu` stands for
# GPUs that are not in the table.


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


_PACKED_INPUT: Final = 5 / 8  # loads of inputs in bytes for each load of inputs in f32

LATENCY: Final = 5e-7
"""Seconds from a load to its value while memory is busy: an assumption."""

REACHED: Final = 0.9
"""The part of a memory's published rate that any kernel reaches: an assumption."""

DISPATCH: Final = 4e-6
"""Seconds of a dispatch that depends on the one before, without its share of memory and arithmetic: an assumption."""

NOT_HIDDEN: Final = 0.1
"""The part of the shorter times of memory, cache and instructions that does not pass during the longest: an assumption.
"""

NORM_WAITS: Final = 3
"""Waits of a matmul that norms its inputs itself, before the first weights are asked for. The sums over the workgroup
count as one of them.
"""

UNPACKING: Final[Mapping[str, float]] = {
    "f16": 0,
    "bf16": 8,
    "f32": 2,
    "int8": 23,
    "q8_0": 32,
    "int4": 20,
    "q4_1": 24,
    "q4_0": 29,
    "q4_k": 50,
    "q5_k": 66,
    "q6_k": 53,
    "q5_0": 44,
    "q5_1": 41,
    "q2_k": 48,
    "q3_k": 69,
    "iq4_nl": 49,
    "iq4_xs": 56,
    "nf4": 47,
    "sf4": 47,
}
"""Vector instructions that turn eight weights into numbers, counted in RADV's code for RDNA3. A look-up in workgroup
memory counts as two, since two SIMD units share it. Tests compare these figures with the compiler's.
"""

MULTIPLYING: Final[Mapping[str, float]] = {"f32": 11, "int8": 4.5}
"""The same to multiply them with eight inputs and load these, by the type of products."""


@dataclass(frozen=True, slots=True)
class HardwareCost:
    """Predicts the times of kernels on a GPU: the longest of the times of memory, cache and instructions, nearly.

    Memory gives at most `REACHED` of its published rate. It gives less if too few bytes are in flight: those that all
    threads have asked for at once, divided by `LATENCY`. The first cache gives a byte for each lane and clock.
    """

    gpu: Gpu

    def dispatch(self, moved_bytes: int, waits: int) -> float:
        """Return the predicted seconds of a dispatch that moves some bytes, waits some times, and computes little."""
        return DISPATCH + waits * LATENCY + moved_bytes / (REACHED * self.gpu.memory)

    def predict(self, work: MatMulWork, variant: MatMulVariant) -> float:
        """Return the predicted seconds of the matmul dispatch `work` with the kernel `variant`."""
        gpu = self.gpu
        passes = -(-work.tokens // variant.tokens)
        need = _tiled_need(work, variant) if isinstance(variant, TiledVariant) else _stream_need(work, variant)
        workgroups = work.rows / variant.rows * passes
        room = gpu.units * gpu.threads * min(1.0, gpu.registers / need.registers)
        in_flight = min(workgroups * variant.threads, room) * need.in_flight
        lanes = gpu.instructions * min(1.0, workgroups / gpu.units)  # those of units that have work, times the clock
        times = (
            work.weight_bytes / min(REACHED * gpu.memory, in_flight / LATENCY),
            _eights(work) * need.near / lanes,
            _eights(work) * need.instructions / lanes,
        )
        seconds = passes * need.waits * (max(times) + NOT_HIDDEN * (sum(times) - max(times)))
        return DISPATCH + need.waits_before * LATENCY + seconds


@dataclass(frozen=True, slots=True)
class _Need:
    """What a matmul kernel needs in one pass over the weights."""

    registers: float  # of a thread, about as RADV allocates them
    in_flight: float  # bytes of weights that a thread asks for at once
    near: float  # bytes from the first cache or workgroup memory, for each eight weights
    instructions: float  # for each eight weights
    waits: float = 1.0  # the factor by which waits at barriers make the kernel longer
    waits_before: int = 0  # that pass before the first weights are asked for


def _stream_need(work: MatMulWork, variant: StreamVariant) -> _Need:
    in_bytes = variant.number == "int8"
    eights_at_once = variant.unroll * (INPUT_BLOCK // COLUMNS_AT_ONCE if in_bytes and variant.unroll > 1 else 1)
    input_bytes = 4 * COLUMNS_AT_ONCE * (_PACKED_INPUT / 2 if in_bytes else 1)
    sharing = {"direct": 1, "broadcast": 8, "by_token": 2, "normed": 1}[variant.inputs] * variant.panels
    loading = (MULTIPLYING[variant.number] - _PRODUCTS[variant.number]) / variant.panels
    norms = COLUMNS_AT_ONCE / variant.rows if variant.inputs == "normed" else 0.0  # columns for each eight weights
    return _Need(
        registers=24 + variant.panels * (7 * variant.unroll + 3 * variant.tokens),
        in_flight=variant.panels * eights_at_once * _eight_bytes(work),
        near=_eight_bytes(work) + variant.tokens * input_bytes / sharing + 4 * _NORM_LOADS * norms,
        instructions=_unpacking(work)
        + variant.tokens * (_PRODUCTS[variant.number] + loading)
        + _NORM_INSTRUCTIONS * norms,
        waits_before=NORM_WAITS if norms else 0,
    )


def _tiled_need(work: MatMulWork, variant: TiledVariant) -> _Need:
    sums = variant.each_rows * variant.each_tokens
    sides = variant.rows + variant.tokens
    lines = 4 * -(-sides * variant.eights // (4 * variant.threads))  # rows and tokens of which a thread loads an eight
    number_bytes = {"f32": 4, "f16": 2, "int8": 1}[variant.number]
    return _Need(
        registers=16 + (2 * sums + 2 * lines if variant.number == "int8" else sums + 8 * lines),
        in_flight=lines * variant.rows / sides * _eight_bytes(work),
        near=number_bytes * COLUMNS_AT_ONCE * variant.tokens * (1 / variant.each_rows + 1 / variant.each_tokens),
        instructions=_unpacking(work) + variant.tokens * _PRODUCTS[variant.number],
        waits=1 + 0.2 / variant.eights,
    )


# Of norm_inputs.wgsl, for each column, read in RADV's code for RDNA3.
_NORM_LOADS: Final = 5
_NORM_INSTRUCTIONS: Final = 25

_PRODUCTS: Final[Mapping[str, float]] = {"f32": 8, "f16": 8, "int8": 2}
"""Instructions that multiply and add eight numbers, by the type of products."""


def _unpacking(work: MatMulWork) -> float:
    return 5 if work.number == "int8" else UNPACKING[work.weights]


def _eights(work: MatMulWork) -> float:
    return work.rows * work.columns / COLUMNS_AT_ONCE


def _eight_bytes(work: MatMulWork) -> float:
    return work.weight_bytes / _eights(work)


def cost_on(info: DeviceInfo) -> HardwareCost:
    """Return the object that predicts the times of kernels on the device `info`.

    For a software device they are those of a small GPU, which say nothing about it.
    """
    return HardwareCost(gpu_of(info) or unknown_gpu(info.kind))


def describe_cost(info: DeviceInfo) -> str:
    """Return in a sentence what the predictions for the device `info` are made from."""
    if gpu := gpu_of(info):
        return f"Predicted times follow from the published figures of the {gpu.name}."
    return (
        f"Predicted times follow from the published figures of the {unknown_gpu(info.kind).name}, since there are none"
        " of this device."
    )


def predict_dispatches(
    dispatches: Iterable[Dispatch], matmuls: MatMulKernels, size: StepSize, cost: HardwareCost
) -> Iterator[float]:
    """Yield the predicted seconds of each dispatch of a step with these `matmuls`."""
    parts = {id(group): (part, matmul.counts_rows) for matmul in matmuls.bound for part, group in matmul.parts}
    singles = {id(single.bind_group): single for matmul in matmuls.bound for single in matmul.singles}
    for dispatch in dispatches:
        if found := parts.get(id(dispatch.bind_group)):
            part, counts_rows = found
            tokens = size.num_rows if counts_rows else size.num_tokens
            yield cost.predict(part.work(tokens), matmuls.tuning.matmul(tokens, part.kind))
        elif single := singles.get(id(dispatch.bind_group)):
            yield cost.predict(single.loaded.work(1), single.variant)
        else:
            yield cost.dispatch(dispatch.moved_bytes, dispatch.waits)
