"""The variants of the matmul kernels: their constants, the devices that can run them, and their predicted times.

Any variant is right on any device that can run it.
Variants differ in speed, and in rounding, since they add up the same sums in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain, product
from typing import Any, Final, TypeAlias

from rnn_engine.forward.segments import ROW_ALIGNMENT
from rnn_engine.forward.weight_formats import COLUMNS_AT_ONCE, INPUT_BLOCK, PANEL_ROWS
from shaders import Constant, Include

_NUMBER_BYTES: Final = {"f32": 4, "f16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class StreamVariant:
    """A set of constants for the kernel matmul.wgsl, which reads every weight once for up to `tokens` tokens.

    matmul.wgsl explains the constants.
    """

    tokens: int
    groups: int = 1
    panels: int = 1
    splits: int = 1
    inputs: str = "direct"  # direct, broadcast or by_token: the WGSL that loads the inputs
    number: str = "f32"  # the type of products: f32 or int8
    unroll: int = 1  # eights of columns whose weights a thread loads at once; 1 unless products are in f32

    @property
    def shader(self) -> str:
        return "matmul"

    @property
    def rows(self) -> int:
        """The number of matrix rows that one workgroup of the kernel computes."""
        return PANEL_ROWS * self.groups * self.panels

    @property
    def threads(self) -> int:
        return PANEL_ROWS * self.groups * self.splits

    @property
    def workgroup_bytes(self) -> int:
        return 4 * self.splits * self.rows * self.tokens if self.splits > 1 else 0

    @property
    def constants(self) -> dict[str, Constant]:
        unroll: dict[str, Constant] = {"UNROLL": self.unroll} if self.number == "f32" else {}
        return {"TOKENS": self.tokens, "GROUPS": self.groups, "PANELS": self.panels, "SPLITS": self.splits, **unroll}

    @property
    def includes(self) -> dict[str, Include]:
        packed = "packed_" if self.number == "int8" else ""
        return {"INPUTS": f"{packed}inputs_{self.inputs}", "PRODUCTS": f"products_{self.number}"}

    def __str__(self) -> str:
        sizes = f"{self.tokens}t {self.groups}g {self.panels}p {self.splits}s {self.unroll}u"
        return f"stream {sizes} {self.inputs} {self.number}"


@dataclass(frozen=True, slots=True)
class TiledVariant:
    """A set of constants for the kernel matmul_tiled.wgsl, which computes the output in tiles.

    A workgroup computes a tile of `rows` by `tokens`, and each of its threads `each_rows` by `each_tokens` of it.
    """

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


_KINDS: Final[dict[str, type[StreamVariant] | type[TiledVariant]]] = {
    "matmul": StreamVariant,
    "matmul_tiled": TiledVariant,
}


def to_record(variant: MatMulVariant) -> dict[str, Any]:
    """Return a kernel variant as a dict that can be written as JSON and that `from_record` reads."""
    return {"shader": variant.shader, **asdict(variant)}


def from_record(record: Mapping[str, Any]) -> MatMulVariant:
    """Return the kernel variant that `to_record` made into the dict `record`.

    Raises ValueError, KeyError or TypeError for an invalid record.
    """
    fields = dict(record)
    kind = _KINDS[fields.pop("shader")]
    variant = kind(**fields)
    if to_record(variant) != record or not all(isinstance(value, int | str) for value in fields.values()):
        raise ValueError(f"{record} is not a variant")
    return variant


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """The limits and features of a device that decide which kernels it can run."""

    threads: int = 256  # of a workgroup
    workgroup_bytes: int = 1 << 14
    can_broadcast: bool = False  # subgroups have at least 8 lanes
    has_f16: bool = False

    def allow(self, variant: MatMulVariant) -> bool:
        """Return True if a device with these limits can run the kernel variant `variant`.

        Its tiles must also divide the rows of a segment evenly.
        """
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
        if variant.number == "int8" and variant.inputs != "by_token":
            return False
        fits = variant.inputs != "by_token" or variant.tokens <= PANEL_ROWS
        return self.can_broadcast and variant.splits == 1 and fits


# The variants of a matmul that are worth a trial on a device, and the predicted cost of each.
#
# The cost model only has to rank the variants: those that it predicts to be slow are not measured. Its figures for
# software devices are cycles of llvmpipe, from the trials in docs/performance.md. Those for hardware are typical of
# its kind.

TOKENS_A_PASS: Final = 64
"""On hardware, no chosen kernel reads the weights more than once for this many tokens."""

_PACKED_INPUT: Final = 5 / 8  # loads of inputs in bytes for each load of inputs in f32
_BYTE_PRODUCTS: Final = 4  # products of bytes that hardware computes in the time of one in f32


@dataclass(frozen=True, slots=True)
class MatMulWork:
    """The size of one matmul dispatch, which multiplies `rows` x `columns` weights with `tokens` tokens."""

    rows: int
    columns: int
    weight_bytes: int
    tokens: int
    number: str = "f32"  # as MatMulClass has it


def variants(limits: KernelLimits, work: MatMulWork, *, software: bool, half: bool = False) -> Iterator[MatMulVariant]:
    """Yield the kernel variants that can run the matmul `work` on a device with `limits`.

    `half` adds those that multiply in f16. On hardware, variants that read the weights more than once for
    `TOKENS_A_PASS` tokens are skipped. Software devices do not wait
    for loads, so unrolled ones are skipped there.
    """
    passes = -(-work.tokens // TOKENS_A_PASS)
    every: Iterable[MatMulVariant] = chain[MatMulVariant](
        _streams(work.tokens, work.number), _tiles(work.tokens, _tile_numbers(work.number, half))
    )
    for variant in every:
        if work.rows % variant.rows or not limits.allow(variant):
            continue
        if software:
            is_worth_a_trial = isinstance(variant, TiledVariant) or variant.unroll == 1
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
        for splits, unroll in product((4, 16, 32), (1, 2, 4) if number == "f32" else (1,)):
            yield StreamVariant(count, groups, panels, splits, number=number, unroll=unroll)


def _tile_numbers(number: str, half: bool) -> tuple[str, ...]:
    return ("f32", "f16") if half and number == "f32" else (number,)


def _tiles(tokens: int, numbers: tuple[str, ...]) -> Iterator[TiledVariant]:
    wide = [count for count in (32, 64, 128) if count < 4 * tokens]
    for rows, count, each_rows, each_tokens in product((32, 64), wide, (4, 8), (4, 8)):
        for eights, number in product((1, 2, 4), numbers):
            yield TiledVariant(rows, count, each_rows, each_tokens, eights, number)


@dataclass(frozen=True, slots=True)
class SoftwareCost:
    """Predicts the time of a matmul on a software driver, which runs the threads of a workgroup as vector lanes.

    Eight lanes run at once.
    """

    seconds_a_cycle: float = 1 / 3e9
    load: float = 70.0  # cycles to load from a place of its own for each lane, whatever the width
    multiply: float = 1.0  # cycles of a product and a sum of all lanes
    multiply_bytes: float = 0.3  # the same in bytes
    store: float = 250.0  # cycles to activate and store the finished sums of all lanes
    registers: int = 76  # vectors that can be alive before some are kept in memory
    spilling: float = 1.7  # the factor by which loads and products are slower then

    def predict(self, work: MatMulWork, variant: MatMulVariant) -> float:
        """Return the predicted seconds of the matmul `work` with `variant` on one core of the processor."""
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
    """Predicts the time of a matmul on a GPU: the longest of the times of memory, cache and arithmetic."""

    memory: float  # bytes a second
    near_memory: float  # bytes a second of the first cache, and of workgroup memory
    operations: float  # a second
    threads: int  # that keep the device busy
    dispatch: float = 4e-6  # seconds
    latency: float = 5e-7  # seconds from a load to its value, while memory is busy
    registers: int = 160  # of a thread before some are kept in memory
    spilling: float = 2.0  # the factor by which it is slower then

    def predict(self, work: MatMulWork, variant: MatMulVariant) -> float:
        """Return the predicted seconds of the matmul dispatch `work` with the kernel `variant`."""
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
            numbers = 2 + 2 * variant.tokens if in_bytes else COLUMNS_AT_ONCE * variant.unroll + variant.tokens
            registers = variant.panels * numbers + 16
            waits = 1.0
        busy = min(1.0, workgroups * variant.threads / self.threads)
        memory = self.memory * busy
        if isinstance(variant, StreamVariant):  # all threads together wait for as many bytes as they have asked for
            eight_bytes = COLUMNS_AT_ONCE * work.weight_bytes / (work.rows * work.columns)
            in_flight = busy * self.threads * variant.panels * variant.unroll * eight_bytes
            memory = min(self.memory, in_flight / self.latency)
        near_seconds, computing = near / (self.near_memory * busy), operations / (self.operations * busy)
        seconds = max(passes * work.weight_bytes / memory, near_seconds, computing)
        slower = self.spilling if registers > self.registers else 1.0
        return self.dispatch + seconds * slower * waits


_HARDWARE: Final[Mapping[str, HardwareCost]] = {
    "discrete": HardwareCost(6e11, 6e12, 1.5e13, 60_000),
    "integrated": HardwareCost(8e10, 1e12, 2e12, 8_000),
}


def cost_on(kind: str) -> SoftwareCost | HardwareCost:
    """Return the object that predicts the times of matmuls on a device of the kind `kind`, as in `DeviceInfo.kind`."""
    return SoftwareCost() if kind == "software" else _HARDWARE.get(kind, _HARDWARE["integrated"])
