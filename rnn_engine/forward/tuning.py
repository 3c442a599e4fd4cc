"""The choice of the matmul kernel variant to run, by kind of device, matrix size and number of tokens.

The figures behind the fixed choices are in docs/performance.md; `tuner` finds better ones for a device.
The choice affects speed alone, never a result's meaning: any variant is right on any device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from rnn_engine.forward.variants import MatMulVariant, StreamVariant, TiledVariant, TransposedVariant
from rnn_engine.forward.weight_formats import WeightFormat
from rnn_engine.gpu import DeviceInfo
from rnn_engine.quantised import KEPT_FORMATS
from rnn_engine.types import ModelShape
from rnn_engine_shaders import Include

TOKEN_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The token counts for which kernels are chosen; another count uses the choice of the next greater one, or the last."""


_FEW_ROWS = 512


def rounded_count(num_tokens: int) -> int:
    """Return the least of `TOKEN_COUNTS` that is at least `num_tokens`, or the greatest of all if none is."""
    return next((count for count in TOKEN_COUNTS if num_tokens <= count), TOKEN_COUNTS[-1])


@dataclass(frozen=True, slots=True, order=True)
class MatMulClass:
    """A class of matmuls that run the same kernel variant: same weight format and number type, similar size."""

    weights: str  # the name of the format
    rows: int  # of the matrices, rounded up to a power of two
    columns: int  # the same
    number: str = "f32"  # the type of products: f32, or int8 if the inputs are bytes too

    @classmethod
    def of(cls, weights: str, rows: int, columns: int, number: str = "f32") -> MatMulClass:
        return cls(weights, 1 << max(0, rows - 1).bit_length(), 1 << max(0, columns - 1).bit_length(), number)

    def __str__(self) -> str:
        return f"{self.weights} {self.rows}x{self.columns}{' times int8' if self.number == 'int8' else ''}"


@dataclass(frozen=True, slots=True)
class Tuning:
    """The kernel settings for one device: a fixed choice for its kind, and the variants that a search found for it."""

    matmuls: tuple[StreamVariant, ...]  # by ascending token count; the first that takes all tokens is run
    tiled: TiledVariant | None  # for more tokens; None = the last variant again and again
    broadcast: bool  # the recurrence's lanes share what they load
    codes: Mapping[str, Include]  # the WGSL that turns codes of 4 bits into numbers, by `WeightFormat.codes`
    norm_threads: int
    candidate_threads: int
    candidate_loads: int  # logits that each of these threads loads at once
    max_tokens: int  # of a step
    max_step_operations: float  # multiplications and additions of a step: a driver ends a submit that takes seconds
    packed: tuple[StreamVariant, ...]  # in place of `matmuls` for products of bytes
    packed_tiled: TiledVariant | None
    transposed: TransposedVariant  # of backward passes
    blocks: tuple[StreamVariant, ...] = ()  # in place of `matmuls` for weights in blocks, unless it is empty
    normed: tuple[StreamVariant, ...] = ()  # of matmuls that norm a single token themselves: for few rows, for more
    adapter_loads: int = 0  # eights of weights of adapters that a recurrence of one token asks for at once, if any
    head_shares: int = 1  # threads that share a row of a recurrence's state
    shares_rows: bool = False  # several workgroups search a long row of logits for candidates
    joins_formats: bool = False  # one dispatch multiplies one token with matrices in blocks and with others in floats
    few_rows: StreamVariant | None = None  # before these for at most `_FEW_ROWS` rows, whose workgroups are few
    found: Mapping[tuple[MatMulClass, int], MatMulVariant] = field(default_factory=dict)  # by class and token count

    def matmul(self, num_tokens: int, kind: MatMulClass | None = None) -> MatMulVariant:
        """Return the matmul kernel variant for `num_tokens` tokens: one that a search found, or the fixed choice."""
        if kind is not None and (found := self.found.get((kind, rounded_count(num_tokens)))):
            return found
        return self.fixed_matmul(num_tokens, kind)

    def fixed_matmul(self, num_tokens: int, kind: MatMulClass | None = None) -> MatMulVariant:
        """Return the fixed choice among the matmul kernel variants for `num_tokens` tokens."""
        fixed, tiled = self._fixed(kind)
        for variant in fixed:
            if num_tokens <= variant.tokens:
                return variant
        return tiled or fixed[-1]

    def normed_matmul(self, kind: MatMulClass) -> StreamVariant:
        return self.normed[0 if kind.rows <= _FEW_ROWS else -1]

    def weight_includes(self, weights: WeightFormat, number: str = "f32") -> dict[str, Include]:
        """Return the WGSL files that load the format `weights`; with `number` int8, for inputs in bytes."""
        include = weights.packed if number == "int8" else weights.include
        assert include is not None
        return (
            {"WEIGHTS": include} if weights.codes is None else {"WEIGHTS": include, "CODES": self.codes[weights.codes]}
        )

    def _fixed(self, kind: MatMulClass | None) -> tuple[tuple[StreamVariant, ...], TiledVariant | None]:
        if kind is not None and kind.number == "int8":
            return self.packed, self.packed_tiled
        in_blocks = kind is not None and kind.weights in KEPT_FORMATS
        streams = (in_blocks and self.blocks) or self.matmuls
        if kind is not None and kind.rows <= _FEW_ROWS and self.few_rows is not None:
            streams = (self.few_rows, *streams)
        return streams, self.tiled

    def token_counts(self, max_tokens: int) -> set[int]:
        """Return token counts, each at most `max_tokens`. Steps of these counts together use every matmul kernel."""
        counts = {variant.tokens for variant in self.matmuls} | {count for _, count in self.found} | {max_tokens}
        return {min(count, max_tokens) for count in counts}

    def step_tokens(self, shape: ModelShape) -> int:
        """Return how many tokens a step has at most by default, for a model of this shape."""
        tokens = int(self.max_step_operations / (2 * shape.num_layers * shape.layer_weights))
        return min(self.max_tokens, max(16, tokens // 16 * 16))


def tuning_for(device: DeviceInfo, *, can_broadcast: bool) -> Tuning:
    """Return the fixed kernel settings for `device`, whose subgroups have at least 8 lanes if it `can_broadcast`."""
    if device.is_software:
        one = "broadcast" if can_broadcast else "direct"
        few = (
            StreamVariant(tokens=1, groups=2, panels=4, inputs=one),
            StreamVariant(tokens=2, panels=4, inputs=one),
            StreamVariant(tokens=4, panels=4, inputs=one),
        )
        by_token = "by_token" if can_broadcast else "direct"
        return Tuning(
            matmuls=(*few, StreamVariant(tokens=8, panels=4, inputs=by_token)),
            packed=tuple(
                StreamVariant(tokens, panels=panels, inputs=by_token, number="int8")
                for tokens, panels in ((1, 4), (4, 4), (8, 2))
            ),
            packed_tiled=None,
            transposed=TransposedVariant(threads=8, tokens=8, inputs=by_token),
            blocks=tuple(
                replace(variant, by_parts=True) for variant in (*few, StreamVariant(tokens=8, panels=4, inputs=one))
            ),
            tiled=None,
            broadcast=can_broadcast,
            codes={"nibbles": "nibbles_by_shifts", "levels": "levels_by_selects"},
            norm_threads=8,
            candidate_threads=64,
            candidate_loads=4,
            max_tokens=64,
            max_step_operations=2e10,
        )
    unrolls = next((unrolls for words, unrolls in _UNROLLS.items() if words & _words(device.name)), _USUAL_UNROLLS)
    return Tuning(
        matmuls=_hardware_streams("f32", unrolls.floats),
        tiled=TiledVariant(rows=64, tokens=64),
        packed=_hardware_streams("int8", (2, 2, 2, 2, 1)),
        packed_tiled=TiledVariant(rows=64, tokens=64, eights=4, number="int8"),
        few_rows=StreamVariant(1, splits=32, unroll=unrolls.floats[0]),
        adapter_loads=4,
        head_shares=4,
        joins_formats=True,
        normed=(
            StreamVariant(1, splits=32, inputs="normed", unroll=4),
            StreamVariant(1, panels=4, splits=32, inputs="normed", unroll=2),
        ),
        blocks=_hardware_streams("f32", unrolls.blocks),
        transposed=TransposedVariant(threads=64, tokens=unrolls.transposed, inputs="direct"),
        broadcast=False,
        codes={"nibbles": unrolls.nibbles, "levels": "levels_by_table"},
        norm_threads=256,
        candidate_threads=256,
        candidate_loads=24,
        shares_rows=True,
        max_tokens=256,
        max_step_operations=2e12 if device.kind == "discrete" else 3e11,
    )


class _Unrolls(NamedTuple):
    """How many eights of weights a thread asks for at once: in steps of 1, 2, 4, 8 and 16 tokens."""

    floats: tuple[int, int, int, int, int]
    blocks: tuple[int, int, int, int, int]
    transposed: int = 8  # tokens that a thread of a transposed product sums up
    nibbles: Include = "nibbles_by_bytes"  # the WGSL that turns codes of 4 bits into numbers


_USUAL_UNROLLS: Final = _Unrolls((4, 4, 4, 4, 2), (8, 4, 4, 4, 2))

_UNROLLS: Final[Mapping[frozenset[str], _Unrolls]] = {
    # A thread has 128 registers. With more, Mesa's compiler gives up hiding latency: 32 to 44 bytes of weights are on
    # their way instead of 64 to 80. Transposed products of eight tokens keep 85 registers in memory, of four none.
    # Arc moves a byte before it makes a float of it. Eight at once take so many registers that the compiler waits for
    # the scales of one block after the other, with 20 to 36 bytes on their way; by shifts 80 to 104.
    frozenset({"arc"}): _Unrolls((2, 2, 2, 2, 2), (2, 2, 2, 2, 2), transposed=4, nibbles="nibbles_by_shifts"),
    frozenset({"intel", "iris"}): _Unrolls((2, 2, 2, 2, 2), (2, 2, 2, 2, 2), transposed=4),
    # Transposed products of eight tokens keep 9 to 51 registers in memory on an M1, of four none.
    frozenset({"apple"}): _Unrolls((4, 4, 4, 4, 2), (8, 4, 4, 4, 2), transposed=4),
    # A thread has 64 registers; with more, some are kept in memory.
    frozenset({"mali", "immortalis"}): _Unrolls((4, 2, 2, 2, 1), (4, 2, 2, 2, 1)),
}
"""By words of devices' names, what their compilers make of the kernels: nothing of it was measured."""


def _words(name: str) -> set[str]:
    return set(re.findall("[a-z]+", name.lower()))


def _hardware_streams(number: str, unrolls: Sequence[int]) -> tuple[StreamVariant, ...]:
    """Return the fixed choices for 1, 2, 4, 8 and 16 tokens on hardware, with the unrolling of each."""
    counts = (1, 2, 4, 8, 16)
    return tuple(
        StreamVariant(tokens, splits=16, number=number, unroll=unroll)
        for tokens, unroll in zip(counts, unrolls, strict=True)
    )
