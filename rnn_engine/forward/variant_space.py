"""The variants of a matmul that are worth a trial on a device, and what each may cost there.

The model of cost only has to put them in order: those that it takes for slow are not measured. Its figures for software
devices are cycles of llvmpipe, from the trials in docs/performance.md; those for hardware are typical of its kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, product
from typing import Final

from rnn_engine.forward.packing import COLUMNS_AT_ONCE, PANEL_ROWS
from rnn_engine.forward.variants import KernelLimits, MatMulVariant, StreamVariant, TiledVariant

TOKENS_A_PASS: Final = 64
"""On hardware no choice reads the weights more than once for so many tokens."""

_PACKED_INPUT: Final = 5 / 8  # loads of inputs in bytes beside those in f32
_BYTE_PRODUCTS: Final = 4  # that hardware computes in the time of one in f32


@dataclass(frozen=True, slots=True)
class MatMulWork:
    """One dispatch: matrices of so many rows and columns times so many tokens."""

    rows: int
    columns: int
    weight_bytes: int
    tokens: int
    number: str = "f32"  # as MatMulClass has it


def variants(limits: KernelLimits, work: MatMulWork, *, software: bool, half: bool = False) -> Iterator[MatMulVariant]:
    """Yield the variants for `work` that a device can run. `half`: also those that multiply in f16."""
    passes = -(-work.tokens // TOKENS_A_PASS)
    every: Iterable[MatMulVariant] = chain[MatMulVariant](
        _streams(work.tokens, work.number), _tiles(work.tokens, _tile_numbers(work.number, half))
    )
    for variant in every:
        if work.rows % variant.rows or not limits.allow(variant):
            continue
        if software or -(-work.tokens // variant.tokens) <= passes:
            yield variant


def _streams(tokens: int, number: str) -> Iterator[StreamVariant]:
    least = min(tokens, PANEL_ROWS)  # more threads than tokens have nothing to do
    counts = [count for count in (1, 2, 4, 8, 16, 32) if least <= count <= max(least, 2 * tokens - 1)]
    for count, groups, panels in product(counts, (1, 2, 4, 8), (1, 2, 4, 8)):
        if groups * panels > 8 or count * panels > 64:
            continue
        for inputs in ("direct", "broadcast", "by_token"):
            yield StreamVariant(count, groups, panels, 1, inputs, number)
        for splits in (4, 16, 32):
            yield StreamVariant(count, groups, panels, splits, number=number)


def _tile_numbers(number: str, half: bool) -> tuple[str, ...]:
    return ("f32", "f16") if half and number == "f32" else (number,)


def _tiles(tokens: int, numbers: tuple[str, ...]) -> Iterator[TiledVariant]:
    wide = [count for count in (32, 64, 128) if count < 4 * tokens]
    for rows, count, each_rows, each_tokens in product((32, 64), wide, (4, 8), (4, 8)):
        for eights, number in product((1, 2, 4), numbers):
            yield TiledVariant(rows, count, each_rows, each_tokens, eights, number)


@dataclass(frozen=True, slots=True)
class SoftwareCost:
    """The cost on a driver that runs a workgroup's threads as the lanes of vectors, eight at a time."""

    seconds_a_cycle: float = 1 / 3e9
    load: float = 70.0  # cycles to load from a place of its own for each lane, however wide
    multiply: float = 1.0  # a product and a sum of all lanes
    multiply_bytes: float = 0.3  # the same in bytes
    store: float = 250.0  # what becomes of the finished sums of all lanes
    registers: int = 76  # vectors that can be alive before they are kept in memory
    spilling: float = 1.7  # how much slower it is then

    def predict(self, work: MatMulWork, variant: MatMulVariant) -> float:
        """Return seconds of one processor."""
        lines, eights = work.rows / PANEL_ROWS, -(-work.columns // COLUMNS_AT_ONCE)
        passes = -(-work.tokens // variant.tokens)
        in_bytes = variant.number == "int8"
        multiply = self.multiply_bytes if in_bytes else self.multiply
        multiplied = lines * eights * COLUMNS_AT_ONCE * variant.tokens * passes
        stored = lines * variant.tokens * passes * self.store
        if isinstance(variant, TiledVariant):
            each = variant.each_rows * variant.each_tokens
            reads = (variant.each_rows + variant.each_tokens) / 4 / each
            moved = lines * eights * passes * (2 + 2 * variant.tokens / variant.rows)
            if in_bytes:
                reads, moved = reads / 4, moved / 4
            cycles = multiplied * (multiply + self.load * reads) + 8 * moved * self.load + stored
            return cycles * self.seconds_a_cycle
        loads: float = {"direct": 2 * variant.tokens, "broadcast": variant.tokens, "by_token": 2}[variant.inputs]
        alive = variant.panels * (COLUMNS_AT_ONCE + variant.tokens) + COLUMNS_AT_ONCE
        if in_bytes:
            loads *= _PACKED_INPUT
            alive = variant.panels * (2 + 2 * variant.tokens) + COLUMNS_AT_ONCE
        loaded = lines * eights * passes * (1 + loads / variant.panels)
        cycles = (loaded * self.load + multiplied * multiply) * (self.spilling if alive > self.registers else 1)
        shared = 2 * self.load * stored / self.store * variant.splits if variant.splits > 1 else 0.0
        return (cycles + stored + shared) * self.seconds_a_cycle


@dataclass(frozen=True, slots=True)
class HardwareCost:
    """The cost on a device of many threads: the greatest of what memory, caches and arithmetic take."""

    memory: float  # bytes a second
    near_memory: float  # of the first cache, and of workgroup memory
    operations: float  # a second
    threads: int  # that keep the device busy
    dispatch: float = 4e-6  # seconds
    registers: int = 160  # of a thread before they are kept in memory
    spilling: float = 2.0

    def predict(self, work: MatMulWork, variant: MatMulVariant) -> float:
        """Return seconds."""
        passes = -(-work.tokens // variant.tokens)
        computed = work.rows * work.columns * variant.tokens * passes
        in_bytes = variant.number == "int8"
        operations = 2 * computed / (_BYTE_PRODUCTS if in_bytes else 1)
        if isinstance(variant, TiledVariant):
            workgroups = work.rows / variant.rows * passes
            near = 4 * computed * (1 / variant.each_rows + 1 / variant.each_tokens)
            near *= {"f32": 1.0, "f16": 0.5, "int8": 0.25}[variant.number]
            loads = -(-(variant.rows + variant.tokens) * variant.eights // (4 * variant.threads))
            sums = variant.each_rows * variant.each_tokens
            registers = (2 * sums + 8 * loads if in_bytes else sums + 32 * loads) + 16
            waits = 1 + 0.2 / variant.eights  # at barriers
        else:
            workgroups = work.rows / variant.rows * passes
            shared = {"direct": 1, "broadcast": 8, "by_token": 2}[variant.inputs]
            input_bytes = 2 * _PACKED_INPUT if in_bytes else 4
            near = passes * work.weight_bytes + input_bytes * computed / variant.panels / shared
            numbers = 2 + 2 * variant.tokens if in_bytes else COLUMNS_AT_ONCE + variant.tokens
            registers = variant.panels * numbers + 16
            waits = 1.0
        busy = min(1.0, workgroups * variant.threads / self.threads)
        seconds = max(passes * work.weight_bytes / self.memory, near / self.near_memory, operations / self.operations)
        slower = self.spilling if registers > self.registers else 1.0
        return self.dispatch + seconds * slower * waits / busy


_HARDWARE: Final[Mapping[str, HardwareCost]] = {
    "discrete": HardwareCost(6e11, 6e12, 1.5e13, 60_000),
    "integrated": HardwareCost(8e10, 1e12, 2e12, 8_000),
}


def cost_on(kind: str) -> SoftwareCost | HardwareCost:
    """Return the model of cost for a kind of device (see `DeviceInfo`)."""
    return SoftwareCost() if kind == "software" else _HARDWARE.get(kind, _HARDWARE["integrated"])
