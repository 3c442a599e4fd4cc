"""The choice of the weight format in which the device stores each matrix, by class of matrix and by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from rnn_engine.bounds import STORED
from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward.weight_formats import STORED_FORMATS, WEIGHT_FORMATS, FloatFormat, WeightFormat
from rnn_engine.types import MatrixPlace, Model, ModelShape

FormatOf: TypeAlias = Callable[[str], WeightFormat | None]
"""Returns the format of a matrix by the name of its tensor; None is the format in the file."""

_CLASSES: Final = ("att", "ffn", "first", "last", "head", "emb", "adapters")
_FEW_LAYERS: Final = 2  # up to this many layers "last" is not used: no layer would be left in 4 bits
_LAYERS: Final = "layers"
_ACTIVATIONS: Final = "activations"
_FINE_BITS: Final = 5.5  # a weight, from which on a format serves for matrices on which results depend most
_MIXES: Final = {  # as llama.cpp makes them of RWKV models
    "q4_k_m": {"att": "q4_k", "ffn": "q4_k", "head": "q6_k", "emb": "q4_k", "adapters": "f16"},
    "q5_k_m": {"att": "q5_k", "ffn": "q5_k", "head": "q6_k", "emb": "q5_k", "adapters": "f16"},
}
_ACTIVATION_TYPES: Final = ("f32", "int8")


@dataclass(frozen=True, slots=True)
class WeightChoice:
    """The user's choice of weight formats: one for each class of matrices.

    The classes are:

    * att, ffn: the matrices of time mix and of channel mix.
    * first, last: both kinds in the first layer, and in the last of three or more. Absent if they have no format of
      their own.
    * head, emb: the head and the embedding.
    * adapters: all low-rank matrices in layers.

    From layer `num_layers` on, matrices of layers are f16; None means no layer is.
    If `activations` is int8, matrices whose weights are bytes are multiplied with bytes: see quantise_inputs.wgsl.
    """

    formats: Mapping[str, str]  # class -> name of a format, or STORED
    num_layers: int | None = None
    activations: str = "f32"

    @classmethod
    def parse(cls, text: str) -> WeightChoice:
        """Parse the user's choice of weight formats, such as `int8,activations=int8` or `int4,head=int8,layers=12`.

        Raises InvalidRequestError. The leading format is for att, ffn and head. The adapters have it if it is a float
        type, else f16. If it has 4 bits, the head, the first layer and the last become int8, since results depend on
        them more. The embedding keeps the type in which it is stored. The mixes q4_k_m and q5_k_m are for all classes.
        """
        first, *rest = (part.strip() for part in text.split(","))
        formats = _MIXES[first].copy() if first in _MIXES else _formats(text, first)
        num_layers, activations = None, "f32"
        given: set[str] = set()
        for part in rest:
            name, equals, value = part.partition("=")
            if name in given:
                raise InvalidRequestError("weights", text, f"{name}= at most once")
            given.add(name)
            if name == _LAYERS and value.isdecimal():
                num_layers = int(value)
                continue
            if name == _ACTIVATIONS and value in _ACTIVATION_TYPES:
                activations = value
                continue
            if not equals or name not in _CLASSES:
                raise InvalidRequestError(
                    "weights",
                    text,
                    f"a format, optionally followed by {', '.join(f'{c}=FORMAT' for c in _CLASSES)}, layers=N, "
                    f"{_ACTIVATIONS}={'|'.join(_ACTIVATION_TYPES)}",
                )
            _check_format(text, value)
            formats[name] = value
        return cls(formats, num_layers, activations)

    def of(self, shape: ModelShape) -> FormatOf:
        """Return the function that maps a tensor's name to its weight format, for a model of the given shape."""
        ends = {0: "first"}
        if shape.num_layers > _FEW_LAYERS:
            ends[shape.num_layers - 1] = "last"
        return partial(self._format_of, shape.place_of, ends)

    def _format_of(
        self, place_of: Callable[[str], MatrixPlace], ends: Mapping[int, str], name: str
    ) -> WeightFormat | None:
        place = place_of(name)
        if place.layer is None:
            return _format(place.part, self.formats)
        if self.num_layers is not None and place.layer >= self.num_layers:
            return WEIGHT_FORMATS["f16"]
        end = place.part if place.part == "adapters" else ends.get(place.layer, place.part)
        return _format(end if end in self.formats else place.part, self.formats)


def _formats(text: str, first: str) -> dict[str, str]:
    """Return the format of each class if the leading format is `first`; see `WeightChoice.parse`."""
    _check_format(text, first, also=_MIXES)
    is_float = first == STORED or isinstance(WEIGHT_FORMATS[first], FloatFormat)
    is_coarse = not is_float and bits(WEIGHT_FORMATS[first]) < _FINE_BITS
    head = "int8" if is_coarse else first
    adapters = first if is_float else "f16"
    ends = dict.fromkeys(("first", "last"), "int8") if is_coarse else {}
    return {"att": first, "ffn": first, "head": head, "emb": STORED, "adapters": adapters, **ends}


def parse_weights(weights: str | FormatOf, shape: ModelShape) -> tuple[FormatOf, str]:
    """Return a function from names to formats, and f32 or int8 activations, for a text or such a function."""
    if not isinstance(weights, str):
        return weights, "f32"
    choice = WeightChoice.parse(weights)
    return choice.of(shape), choice.activations


def _format(group: str, formats: Mapping[str, str]) -> WeightFormat | None:
    name = formats[group]
    return None if name == STORED else WEIGHT_FORMATS[name]


def bits(weights: WeightFormat) -> float:
    """Return how many bits one weight takes in the format `weights`, including its share of the scales."""
    return 8 * sum(weights.block_bytes.values()) / weights.block_columns


def _check_format(text: str, name: str, also: Iterable[str] = ()) -> None:
    if name != STORED and name not in WEIGHT_FORMATS:
        allowed = ", ".join((STORED, *WEIGHT_FORMATS, *also))
        raise InvalidRequestError("weights", text, f"one of the formats {allowed}")


def stored_format(dtype: np.dtype[Any], block_type: str | None = None) -> WeightFormat:
    """Return the format that stores floats of `dtype`, or `block_type`, without conversion; f32 if there is none."""
    if block_type is not None:
        return STORED_FORMATS[block_type.lower()]
    name = {"float16": "f16", "bfloat16": "bf16"}.get(dtype.name, "f32")
    return WEIGHT_FORMATS[name]


def has_bytes(model: Model, format_of: FormatOf) -> bool:
    """Return True if some matrix has 8-bit weights on the device, so that int8 activations would have an effect."""
    kept = ((model.block_type(name) or "").lower() for name in model.names)
    chosen = (format_of(name) or STORED_FORMATS.get(stored) for name, stored in zip(model.names, kept, strict=True))
    return any(weights is not None and weights.packed is not None for weights in chosen)


def has_kept_blocks(model: Model) -> bool:
    """Return True if the model's file has matrices in quantised blocks."""
    return any(model.block_type(name) is not None for name in model.names)


def describe_blocks(model: Model, format_of: FormatOf) -> Iterator[str]:
    """Yield lines for the user that say how the file's quantised matrices, if any, are loaded: kept or converted."""
    if kept := count_kept(model, format_of):
        yield f"matrices kept in the blocks of the file: {_counts(kept)}"
    converted: Counter[str] = Counter()
    for block_type, chosen in _of_blocks(model, format_of):
        if chosen is not None and chosen.name != block_type.lower():
            converted[f"{block_type} to {chosen.name}"] += 1
    if converted:
        yield f"matrices converted from the blocks of the file, as --weights says: {_counts(converted)}"


def count_kept(model: Model, format_of: FormatOf) -> Counter[str]:
    """Count the matrices that stay in blocks as the file has them, by the type of the blocks."""
    kept: Counter[str] = Counter()
    for block_type, chosen in _of_blocks(model, format_of):
        if chosen is None or chosen.name == block_type.lower():
            kept[block_type] += 1
    return kept


def _of_blocks(model: Model, format_of: FormatOf) -> Iterator[tuple[str, WeightFormat | None]]:
    """Yield the type of blocks of each matrix that is in blocks, and the format that is chosen for it."""
    for name in model.names:
        if (block_type := model.block_type(name)) is not None:
            yield block_type, format_of(name)


def _counts(types: Counter[str]) -> str:
    return ", ".join(f"{number} in {kind}" for kind, number in sorted(types.items()))
