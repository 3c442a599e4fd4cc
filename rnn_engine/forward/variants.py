"""The variants of the matmul kernels: their constants, the devices that can run them, and those worth a trial.

Any variant is right on any device that can run it.
Variants differ in speed, and in rounding, since they add up the same sums in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, product
from typing import Final, TypeAlias

from rnn_engine.forward.segments import ROW_ALIGNMENT
from rnn_engine.forward.weight_formats import COLUMNS_AT_ONCE, INPUT_BLOCK, PANEL_ROWS
from rnn_engine_shaders import Constant, Include

_NUMBER_BYTES: Final = {"f32": 4, "f16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class StreamVariant:
    """Constants of matmul.wgsl, which explains them. It reads every weight once for up to `tokens` tokens."""

    tokens: int
    groups: int = 1
    panels: int = 1
    splits: int = 1
    inputs: str = "direct"  # direct, broadcast, by_token or normed: the WGSL that loads the inputs
    number: str = "f32"  # the type of products: f32 or int8
    unroll: int = 1  # eights of columns, or blocks of inputs in bytes, whose weights a thread loads at once
    by_parts: bool = False  # products_by_parts.wgsl multiplies; only for weights in blocks, without splits or unrolling

    @property
    def shader(self) -> str:
        return "matmul"

    @property
    def rows(self) -> int:
        return PANEL_ROWS * self.groups * self.panels

    @property
    def threads(self) -> int:
        return PANEL_ROWS * self.groups * self.splits

    @property
    def workgroup_bytes(self) -> int:
        return 4 * self.splits * self.rows * self.tokens if self.splits > 1 else 0

    @property
    def constants(self) -> dict[str, Constant]:
        return {
            "TOKENS": self.tokens,
            "GROUPS": self.groups,
            "PANELS": self.panels,
            "SPLITS": self.splits,
            **({} if self.by_parts else {"UNROLL": self.unroll}),
        }

    @property
    def includes(self) -> dict[str, Include]:
        packed = "packed_" if self.number == "int8" else ""
        includes: dict[str, Include] = {
            "INPUTS": f"{packed}inputs_{self.inputs}",
            "PRODUCTS": "products_by_parts" if self.by_parts else f"products_{self.number}",
        }
        if self.inputs != "normed":
            return includes
        return {**includes, "stored_inputs": "norm_inputs", "batch_counts": "batch"}  # norms the token of a slot

    def __str__(self) -> str:
        sizes = f"{self.tokens}t {self.groups}g {self.panels}p {self.splits}s {self.unroll}u"
        return f"stream {sizes} {self.inputs} {self.number}"


@dataclass(frozen=True, slots=True)
class TiledVariant:
    """Constants of matmul_tiled.wgsl: tiles of `rows` by `tokens`, and of `each_rows` by `each_tokens` for a thread."""

    rows: int
    tokens: int
    each_rows: int = 4
    each_tokens: int = 4
    eights: int = 2  # of columns in workgroup memory at once
    number: str = "f32"  # the type of products: f32, f16 or int8; sums are f32 in any case

    @property
    def shader(self) -> str:
        return "matmul_tiled"

    @property
    def threads(self) -> int:
        return self.rows // self.each_rows * (self.tokens // self.each_tokens)

    @property
    def workgroup_bytes(self) -> int:
        line_bytes = 8 * self.eights * _NUMBER_BYTES[self.number]
        if self.number == "int8":
            line_bytes += 8  # the figures of its block
        return line_bytes * (self.rows + self.tokens) + 4 * self.rows * (self.tokens // self.each_tokens)

    @property
    def constants(self) -> dict[str, Constant]:
        return {
            "TILE_ROWS": self.rows,
            "TILE_TOKENS": self.tokens,
            "EACH_ROWS": self.each_rows,
            "EACH_TOKENS": self.each_tokens,
            "EIGHTS": self.eights,
        }

    @property
    def includes(self) -> dict[str, Include]:
        if self.number == "int8":
            return {"PRODUCTS": "tiles_int8"}
        return {"PRODUCTS": "tiles_f32", "NUMBER": f"number_{self.number}"}

    def __str__(self) -> str:
        return f"tiled {self.rows}x{self.tokens} {self.each_rows}x{self.each_tokens} {self.eights}e {self.number}"


MatMulVariant: TypeAlias = StreamVariant | TiledVariant


@dataclass(frozen=True, slots=True)
class TransposedVariant:
    """A set of constants for the kernel matmul_transposed.wgsl, whose threads own eight columns each."""

    threads: int  # of a workgroup
    tokens: int  # for which it reads every weight once
    inputs: str  # direct, broadcast or by_token, as in StreamVariant


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """The limits and features of a device that decide which kernels it can run."""

    threads: int = 256  # of a workgroup
    workgroup_bytes: int = 1 << 14
    can_broadcast: bool = False  # subgroups have at least 8 lanes
    has_f16: bool = False

    def allow(self, variant: MatMulVariant) -> bool:
        """Return True if a device with these limits can run `variant`, and its tiles divide segments evenly."""
        if ROW_ALIGNMENT % variant.rows or not 8 <= variant.threads <= self.threads:
            return False
        if variant.workgroup_bytes > self.workgroup_bytes:
            return False
        if isinstance(variant, TiledVariant):
            if variant.number == "int8":
                return variant.eights == INPUT_BLOCK // COLUMNS_AT_ONCE
            return variant.number == "f32" or self.has_f16
        if variant.inputs == "direct":
            return True
        if variant.number == "int8" and (variant.inputs != "by_token" or variant.unroll > 1):
            return False
        fits = variant.inputs != "by_token" or variant.tokens <= PANEL_ROWS
        return self.can_broadcast and variant.splits == 1 and fits


# The variants of a matmul that are worth a trial on a device. `cost` predicts the time of each.

TOKENS_A_PASS: Final = 64
"""On hardware, no chosen kernel reads the weights more than once for this many tokens."""


@dataclass(frozen=True, slots=True)
class MatMulWork:
    """The size of one matmul dispatch, which multiplies `rows` x `columns` weights with `tokens` tokens."""

    rows: int
    columns: int
    weight_bytes: int
    tokens: int
    weights: str = "f16"  # the name of the format
    number: str = "f32"  # as MatMulClass has it


def variants(limits: KernelLimits, work: MatMulWork, *, software: bool, half: bool = False) -> Iterator[MatMulVariant]:
    """Yield the variants worth a trial for `work` on a device with `limits`; `half` adds products in f16."""
    passes = -(-work.tokens // TOKENS_A_PASS)
    numbers = ("f32", "f16") if half and work.number == "f32" else (work.number,)
    every: Iterable[MatMulVariant] = chain[MatMulVariant](
        _streams(work.tokens, work.number), _tiles(work.tokens, numbers)
    )
    for variant in every:
        if work.rows % variant.rows or not limits.allow(variant):
            continue
        if software:
            is_worth_a_trial = isinstance(variant, TiledVariant) or variant.unroll == 1  # it does not wait for loads
        else:
            is_worth_a_trial = -(-work.tokens // variant.tokens) <= passes
        if is_worth_a_trial:
            yield variant


def _streams(tokens: int, number: str) -> Iterator[StreamVariant]:
    least = min(tokens, PANEL_ROWS)  # variants for fewer tokens would read the weights more often
    counts = [count for count in (1, 2, 4, 8, 16, 32) if least <= count <= max(least, 2 * tokens - 1)]
    for count, groups, panels in product(counts, (1, 2, 4, 8), (1, 2, 4, 8)):
        if groups * panels > 8 or count * panels > 64:
            continue
        for inputs in ("direct", "broadcast", "by_token"):
            yield StreamVariant(count, groups, panels, 1, inputs, number)
        for splits, unroll in product((4, 16, 32), (1, 2, 4, 8) if number == "f32" else (1, 2)):
            yield StreamVariant(count, groups, panels, splits, number=number, unroll=unroll)


def _tiles(tokens: int, numbers: tuple[str, ...]) -> Iterator[TiledVariant]:
    wide = [count for count in (32, 64, 128) if count < 4 * tokens]
    for rows, count, each_rows, each_tokens in product((32, 64), wide, (4, 8), (4, 8)):
        for eights, number in product((1, 2, 4), numbers):
            yield TiledVariant(rows, count, each_rows, each_tokens, eights, number)
