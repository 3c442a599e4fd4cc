"""Write ai00's prefab models: web-rwkv's structures as CBOR, with its tensor names and transforms, in f16."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, Final

import numpy as np
from cbor2 import CBOREncoder
from numpy.typing import NDArray

from rnn_engine.convert.writers import F16, ConversionSource, check_ai00, model_info
from rnn_engine.errors import ModelError
from rnn_engine.model.layout import TensorSpec
from rnn_engine.tensor_files.prefab_file import MATRICES, V6_MIXES
from rnn_engine.versions.v7.layout import ShapeV7

_BLOCK: Final = re.compile(r"blocks\.([0-9]+)\.(att|ffn|ln1|ln2|ln0)\.(.*)")
_FIELDS: Final = {name: field for field, name in MATRICES.items()}
_NORM_FIELDS: Final = {"weight": "w", "bias": "b"}
_RESCALE: Final = 6  # layers after which the results of layers are halved, in versions before RWKV-7
_NEVER: Final = 1024
_PADDING: Final = 8


@dataclass(frozen=True, slots=True)
class _Array:
    """An array for a prefab file: its shape and type, and a function that reads its numbers from the model.

    The file stores the shape with the fastest dimension first, padded to 4 dimensions.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], NDArray[Any]]


def write_prefab(file: IO[bytes], source: ConversionSource) -> None:
    """Write a model as a prefab file of ai00.

    Raises ModelError for a version that ai00 does not support, for a tuned state, for a weight format other than f16,
    and for a width that is no multiple of 8.
    """
    check_ai00(source, "a prefab")
    for spec in source.specs:
        if spec.name.endswith(".time_state"):
            raise ModelError(f"a prefab can't hold {spec.name}; expected a model without a tuned state")
    shape = source.shape
    if shape.width % _PADDING:
        raise ModelError(f"ai00 can't run a width of {shape.width}; expected a multiple of {_PADDING}")
    _write(
        file,
        {
            "context": None,
            "info": model_info(shape),
            "rescale": _NEVER if isinstance(shape, ShapeV7) else _RESCALE,
            "sep": 1024,
            "tensor": _Tree(source).build(),
        },
    )


class _Tree:
    """A builder of a prefab's nested dicts and lists, in which web-rwkv stores a model's tensors."""

    def __init__(self, source: ConversionSource) -> None:
        self._source = source
        self._version = source.shape.version[:2]
        self._is_v7 = self._version == "v7"
        self._num_heads = source.shape.sizes.get("num_heads", 1)

    def build(self) -> dict[str, Any]:
        norm = "ln" if self._is_v7 else "layer_norm"
        embed: dict[str, Any] = {norm: {}, "w": None}
        head: dict[str, Any] = {norm: {}, "w": None}
        layers: list[dict[str, Any]] = [
            {f"att_{norm}": {}, f"ffn_{norm}": {}, "att": {}, "ffn": {}} for _ in range(self._source.shape.num_layers)
        ]
        mixes: dict[str, TensorSpec] = {}
        for spec in self._source.specs:
            match = _BLOCK.fullmatch(spec.name)
            if match is None:
                part, kind = spec.name.split(".")
                if part == "ln_out":
                    head[norm][_NORM_FIELDS[kind]] = self._array(spec)
                elif part == "emb":
                    embed["w"] = self._padded(spec)
                else:
                    head["w"] = {"Fp16": self._padded(spec) if self._version in ("v6", "v7") else self._array(spec)}
                continue
            layer, part, rest = layers[int(match[1])], match[2], match[3]
            if part == "ln0":
                embed[norm][_NORM_FIELDS[rest]] = self._array(spec)
            elif part in ("ln1", "ln2"):
                layer[f"{'att' if part == 'ln1' else 'ffn'}_{norm}"][_NORM_FIELDS[rest]] = self._array(spec)
            elif self._version == "v6" and re.fullmatch(f"time_maa_[{V6_MIXES}]", rest) and part == "att":
                mixes[spec.name] = spec
            else:
                self._add(layer[part], int(match[1]), part, rest, spec)
        if self._version == "v6":
            for number, layer in enumerate(layers):
                specs = [mixes[f"blocks.{number}.att.time_maa_{kind}"] for kind in V6_MIXES]
                layer["att"]["time_mix"] = self._stacked(specs)
        if self._is_v7:
            layers[0]["att"] |= {f"v{number}": layers[0]["att"][f"a{number}"] for number in "012"}  # unused
        return {"embed": embed, "head": head, "layers": layers}

    def _add(self, fields: dict[str, Any], layer: int, part: str, rest: str, spec: TensorSpec) -> None:
        name, _, kind = rest.partition(".")
        if name == "ln_x":
            norm = fields.setdefault("gn" if self._is_v7 else "group_norm", {})
            norm[_NORM_FIELDS[kind]] = self._array(spec, lambda array: array.reshape(self._num_heads, -1))
        elif kind:
            halvings = 0 if self._is_v7 else layer // _RESCALE
            is_halved = name == ("output" if part == "att" else "value")
            scale = F16.type(2.0 ** -(halvings if is_halved else 0))
            fields[_FIELDS[name]] = {"Fp16": self._array(spec, lambda array: array * scale)}
        elif spec.ai00_swaps:
            swapped = self._array(spec, lambda array: array.swapaxes(-1, -2))
            fields[(spec.ai00_name or spec.name).rpartition(".")[2]] = {"Fp16": swapped}
        else:
            field = (spec.ai00_name or spec.name).rpartition(".")[2].replace("time_faaaa", "time_first")
            fields[field] = self._vector(field, spec)

    def _vector(self, field: str, spec: TensorSpec) -> _Array:
        if field not in ("time_decay", "time_first") or (field == "time_decay" and self._version == "v6"):
            return self._array(spec, lambda array: array if field == "r_k" else array.reshape(-1))
        width = self._source.shape.width
        use = _DECAYS[self._version] if field == "time_decay" else lambda array: array

        def transform(array: NDArray[Any]) -> NDArray[Any]:
            repeated = np.repeat(array.reshape(-1), width // array.size)  # RWKV-5.1 has one number a head
            with np.errstate(under="ignore"):
                return use(repeated.astype(np.float32))

        return self._array(spec, transform)

    def _array(self, spec: TensorSpec, transform: Callable[[NDArray[Any]], NDArray[Any]] | None = None) -> _Array:
        def read() -> NDArray[Any]:
            array = self._source.read(spec, F16)
            return array if transform is None else transform(array)

        empty = np.broadcast_to(np.ones((), F16), self._source.model.tensors[spec.name].shape)
        like = empty if transform is None else transform(empty)
        return _Array(like.shape, like.dtype, read)

    def _padded(self, spec: TensorSpec) -> _Array:
        rows = self._source.shape.vocab_size
        return self._array(spec, lambda array: np.pad(array, ((0, -rows % _PADDING), (0, 0))))

    def _stacked(self, specs: list[TensorSpec]) -> _Array:
        shape = (len(specs), 1, self._source.shape.width)
        return _Array(shape, F16, lambda: np.stack([self._source.read(spec, F16) for spec in specs]).reshape(shape))


_DECAYS: Final[Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "v4": lambda array: -np.exp(array),
    "v5": lambda array: np.exp(-np.exp(array)),
}


_BYTES, _LIST, _MAP = 2, 4, 5  # CBOR's major types


def _write(file: IO[bytes], item: Any) -> None:  # noqa: ANN401
    """Write nested dicts, lists and arrays as CBOR, reading one array of the model at a time."""
    encoder = CBOREncoder(file)
    match item:
        case dict():
            encoder.encode_length(_MAP, len(item))
            for key, value in item.items():
                encoder.encode(key)
                _write(file, value)
        case list():
            encoder.encode_length(_LIST, len(item))
            for value in item:
                _write(file, value)
        case _Array():
            encoder.encode_length(_MAP, 2)
            for part in ("shape", [*reversed(item.shape), 1, 1, 1, 1][:4], "data"):
                encoder.encode(part)
            array = np.ascontiguousarray(item.read(), item.dtype)
            encoder.encode_length(_BYTES, array.nbytes)
            file.write(array.reshape(-1).view(np.uint8).data)
        case _:
            encoder.encode(item)
