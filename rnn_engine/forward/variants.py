"""The variants of the matmul kernels: which constants they have, and which of them a device can run.

Any variant is right on any device that can run it; they differ in speed, and by what rounding another order of the
same sums brings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

from rnn_engine.forward.packing import COLUMNS_AT_ONCE, INPUT_BLOCK, PANEL_ROWS
from rnn_engine.forward.segments import ROW_ALIGNMENT
from shaders import Constant, Include

_NUMBER_BYTES: Final = {"f32": 4, "f16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class StreamVariant:
    """matmul.wgsl, where the constants are explained: every weight is read once for up to `tokens` tokens."""

    tokens: int
    groups: int = 1
    panels: int = 1
    splits: int = 1
    inputs: str = "direct"  # direct, broadcast or by_token: the WGSL that loads the inputs
    number: str = "f32"  # of products, or int8

    @property
    def shader(self) -> str:
        return "matmul"

    @property
    def rows(self) -> int:
        """Rows of a workgroup."""
        return PANEL_ROWS * self.groups * self.panels

    @property
    def threads(self) -> int:
        return PANEL_ROWS * self.groups * self.splits

    @property
    def workgroup_bytes(self) -> int:
        return 4 * self.splits * self.rows * self.tokens if self.splits > 1 else 0

    @property
    def constants(self) -> dict[str, Constant]:
        return {"TOKENS": self.tokens, "GROUPS": self.groups, "PANELS": self.panels, "SPLITS": self.splits}

    @property
    def includes(self) -> dict[str, Include]:
        packed = "packed_" if self.number == "int8" else ""
        return {"INPUTS": f"{packed}inputs_{self.inputs}", "PRODUCTS": f"products_{self.number}"}

    def __str__(self) -> str:
        return f"stream {self.tokens}t {self.groups}g {self.panels}p {self.splits}s {self.inputs} {self.number}"


@dataclass(frozen=True, slots=True)
class TiledVariant:
    """matmul_tiled.wgsl: `rows` by `tokens` a workgroup, `each_rows` by `each_tokens` of them a thread."""

    rows: int
    tokens: int
    each_rows: int = 4
    each_tokens: int = 4
    eights: int = 2  # of columns in workgroup memory at once
    number: str = "f32"  # of products, or f16 or int8; sums are f32 in any case

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

_KINDS: Final[dict[str, type[StreamVariant] | type[TiledVariant]]] = {
    "matmul": StreamVariant,
    "matmul_tiled": TiledVariant,
}


def to_record(variant: MatMulVariant) -> dict[str, Any]:
    """Return a variant as JSON has it."""
    return {"shader": variant.shader, **asdict(variant)}


def from_record(record: Mapping[str, Any]) -> MatMulVariant:
    """Return the variant of `to_record`. Raises ValueError, KeyError or TypeError for what it did not make."""
    fields = dict(record)
    kind = _KINDS[fields.pop("shader")]
    variant = kind(**fields)
    if to_record(variant) != record or not all(isinstance(value, int | str) for value in fields.values()):
        raise ValueError(f"{record} is no variant")
    return variant


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """What the kernels of a device may use."""

    threads: int = 256  # of a workgroup
    workgroup_bytes: int = 1 << 14
    can_broadcast: bool = False  # subgroups have at least 8 lanes
    has_f16: bool = False

    def allow(self, variant: MatMulVariant) -> bool:
        """Whether a device with these limits can run `variant`, and its tiles fit the rows of a segment."""
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
