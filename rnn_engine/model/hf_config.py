"""What the config.json of a Hugging Face folder says of the maths: taken over, or refused where it is not served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any, Final, Literal

from rnn_engine.errors import ModelError
from rnn_engine.model.hf_folder import CONFIG_NAME
from rnn_engine.model.json_file import read_stamped_json
from rnn_engine.tensor_files.binary_file import FileStamp
from rnn_engine.tensor_files.listing import show
from rnn_engine.types import ModelShape

Library = Literal["flash-linear-attention", "transformers"]

_VERSIONS: Final = {"rwkv": "v4", "rwkv5": "v5", "rwkv6": "v6", "rwkv7": "v7"}
_NORM_EPSILON: Final = 1e-5
_COMMON: Final[dict[str, tuple[object, ...]]] = {"quantization_config": (None,)}
_SERVED: Final[Mapping[Library, Mapping[str, tuple[object, ...]]]] = {
    "flash-linear-attention": {
        **_COMMON,
        "attn": (None,),  # layers of attention between those of RWKV
        "hidden_act": ("sqrelu",),
        "gate_fn": ("swish", "silu"),
        "norm_first": (True,),
        "norm_bias": (True,),
        "norm_eps": (_NORM_EPSILON,),
        "expand_k": (1,),
        "expand_v": (1,),
    },
    "transformers": {**_COMMON, "layer_norm_epsilon": (_NORM_EPSILON,)},
}
"""The fields that change the maths, with the values that are served; one that is missing has such a value."""
_SIZES: Final = {
    "hidden_size": "width",
    "attention_hidden_size": "width",
    "num_hidden_layers": "num_layers",
    "intermediate_size": "ffn_width",
    "vocab_size": "vocab_size",
    "head_dim": "head_size",
    "head_size": "head_size",
}
_HEAD_DIVISOR: Final = 8  # what transformers divides the heads' outputs by, unless the config says another number
_RATIO_STEP: Final = 32  # of which the width of the channel mix is a multiple, where a ratio says it


@dataclass(frozen=True, slots=True)
class HfConfig:
    """The config of a model under the names of `library`; `values` is empty where the model's folder has none."""

    library: Library
    path: Path
    values: Mapping[str, Any]
    stamp: FileStamp | None

    @classmethod
    def read(cls, folder: Path, library: Library) -> HfConfig:
        """Read the config of a folder. Raises ModelError where it is damaged or asks for what is not served."""
        path = folder / CONFIG_NAME
        values, stamp = read_stamped_json(path) if path.is_file() else ({}, None)
        config = cls(library, path, values, stamp)
        for field, served in _SERVED[library].items():
            if field in values and not any(_same(values[field], value) for value in served):
                raise config._refusal(field, " or ".join(map(repr, served)))
        return config

    @property
    def ties_head(self) -> bool:
        """Whether the head is the embedding."""
        tied = self.values.get("tie_word_embeddings")
        if tied not in (None, True, False):
            raise self._refusal("tie_word_embeddings", "true or false")
        return tied is True

    def apply(self, shape: ModelShape) -> ModelShape:
        """Return the shape with the config's epsilon. Raises ModelError where the config contradicts the shape."""
        self._check_version(shape.version)
        self._check_sizes(shape.sizes)
        head_size = shape.sizes.get("head_size")
        return shape if head_size is None else shape.with_group_norm_epsilon(self._group_norm_epsilon(shape, head_size))

    def _check_version(self, version: str) -> None:
        stated = self.values.get("model_type")
        if stated is not None and (not isinstance(stated, str) or not version.startswith(_VERSIONS.get(stated, "?"))):
            expected = next((kind for kind, number in _VERSIONS.items() if version.startswith(number)), "none")
            raise self._refusal("model_type", f"{expected}, as the tensors have it")

    def _check_sizes(self, sizes: Mapping[str, int]) -> None:
        for field, size in _SIZES.items():
            stated = self.values.get(field)
            if stated is not None and size in sizes and stated != sizes[size]:
                raise self._refusal(field, f"{sizes[size]}, as the tensors have it")
        if self.library == "transformers":
            return
        if self.values.get("head_dim") is None and self.values.get("num_heads") not in (None, sizes["num_heads"]):
            raise self._refusal("num_heads", f"{sizes['num_heads']}, as the tensors have it")
        if self.values.get("intermediate_size") is None:
            self._check_ratio(sizes)
        values = self.values.get("value_dim")
        for stated in values if isinstance(values, list) else [values]:
            if stated not in (None, sizes["width"]):
                raise self._refusal("value_dim", f"{sizes['width']}, the hidden_size, for every layer")

    def _check_ratio(self, sizes: Mapping[str, int]) -> None:
        ratio = self.values.get("hidden_ratio")
        if ratio is None:
            return
        if type(ratio) not in (int, float) or not 0 < ratio < 1e6:
            raise self._refusal("hidden_ratio", "a number above 0")
        expected = -(-int(sizes["width"] * ratio) // _RATIO_STEP) * _RATIO_STEP
        if expected != sizes["ffn_width"]:
            raise self._refusal("hidden_ratio", f"one that makes {sizes['ffn_width']} of the width, not {expected}")

    def _group_norm_epsilon(self, shape: ModelShape, head_size: int) -> float:
        if self.library == "flash-linear-attention":
            return _NORM_EPSILON * (head_size if shape.version == "v7" else 1)
        divisor = self.values.get("head_size_divisor", _HEAD_DIVISOR)
        if type(divisor) not in (int, float) or not 0 < divisor < 1e6:
            raise self._refusal("head_size_divisor", "a number above 0")
        return _NORM_EPSILON * float(divisor) ** 2

    def _refusal(self, field: str, expected: str) -> ModelError:
        return ModelError(f"{self.path}: {field} is {show(repr(self.values[field]))}; expected {expected}")


def _same(stated: object, value: object) -> bool:
    if isinstance(value, float):
        return isinstance(stated, float) and isclose(stated, value, rel_tol=1e-6)
    return stated == value and isinstance(stated, bool) == isinstance(value, bool)
