"""Write a model with BlinkDL's tensor names, as ai00's `.st` file, or as a folder for flash-linear-attention."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from rnn_engine.errors import ModelError
from rnn_engine.files import atomic_file
from rnn_engine.forward import Progress
from rnn_engine.forward.weight_choice import FormatOf
from rnn_engine.forward.weight_formats import FloatFormat
from rnn_engine.model import ModelFile
from rnn_engine.model.huggingface import fla_name, is_transposed
from rnn_engine.model.layout import TensorSpec
from rnn_engine.quantised import KEPT_FORMATS, BlockFormat, Blocks, quantise
from rnn_engine.tensor_files.pth_file import write_pth
from rnn_engine.tensor_files.safetensors_file import (
    CODES,
    FIGURES,
    StoredMatrix,
    describe_matrices,
    widest_first,
    write_safetensors,
)
from rnn_engine.tensor_files.source import TensorEntry, TensorInfo
from rnn_engine.types import ModelShape
from rnn_engine.versions.v5 import ShapeV5
from rnn_engine.versions.v6.layout import ShapeV6
from rnn_engine.versions.v7.layout import ShapeV7

Transform: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]

F16: Final = np.dtype(np.float16)
F32: Final = np.dtype(np.float32)
_FLOATS: Final = "--weights f16, bf16 or f32"


def is_matrix(spec: TensorSpec) -> bool:
    """Return True if a user's choice of weight formats applies to a tensor; other tensors keep their type.

    It does for a tensor of two or more dimensions, unless a dimension is the head size.
    """
    return len(spec.dims) > 1 and "N" not in spec.dims


@dataclass(frozen=True, slots=True)
class ConversionSource:
    """A model that is being converted: reads its tensors in the chosen weight formats, and reports the progress."""

    model: ModelFile
    specs: Sequence[TensorSpec]  # of the model's tensors, in BlinkDL's names and orientation
    format_of: FormatOf  # of its matrices
    progress: Progress

    @property
    def shape(self) -> ModelShape:
        return self.model.shape

    def block_format(self, spec: TensorSpec) -> BlockFormat | None:
        """Return the quantised block format with which a tensor will be written; None for plain numbers.

        Raises ModelError if blocks are chosen for the matrices of adapters, for which a device does not support them.
        """
        if not is_matrix(spec):
            return None
        chosen = self.format_of(spec.name)
        name = self.model.tensors[spec.name].block_type if chosen is None else chosen.name
        found = KEPT_FORMATS.get((name or "").lower())
        if found is not None and not spec.name.endswith(".weight"):
            raise ModelError(f"{spec.name} can't be saved in {name}; expected adapters=f16, bf16 or f32")
        return found

    def read_blocks(self, spec: TensorSpec, block_format: BlockFormat) -> Blocks:
        """Read a matrix in quantised blocks of `block_format`: those of the model's file, or else newly quantised."""
        self._report(spec)
        blocks = self.model.blocks(spec.name)
        if blocks is not None and blocks.format == block_format:
            return blocks
        return quantise(block_format, self.model.tensor(spec.name))

    def dtype(self, spec: TensorSpec) -> np.dtype[Any]:
        """Return the float type with which a tensor will be written: the user's choice, or else its type in the model.

        Raises ModelError if the chosen format, or else the model's, is no float type.
        """
        info = self.model.tensors[spec.name]
        chosen = self.format_of(spec.name) if is_matrix(spec) else None
        if chosen is None:
            if info.block_type is None:
                return info.dtype
            raise ModelError(f"{spec.name} is stored in blocks of {info.block_type}; expected {_FLOATS}")
        if not isinstance(chosen, FloatFormat):
            raise ModelError(f"{spec.name} can't be written as {chosen.name}; expected {_FLOATS}")
        return np.dtype(chosen.dtype)

    def entry(
        self,
        spec: TensorSpec,
        name: str,
        *,
        dtype: np.dtype[Any] | None = None,
        shape: Sequence[int] | None = None,
        transform: Transform = lambda tensor: tensor,
    ) -> TensorEntry:
        """Return the output file's entry for a tensor: its `name` there, its shape and type, and how to read it.

        `dtype` None selects `self.dtype`. `transform` is applied to the model's tensor, and returns one of `shape`;
        `shape` None is the model's.
        """
        target = self.dtype(spec) if dtype is None else dtype
        info = TensorInfo(tuple(shape or self.model.tensors[spec.name].shape), target)
        return TensorEntry(name, info, lambda: transform(self.read(spec, target)))

    def read(self, spec: TensorSpec, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Read a tensor of the model and convert it to `dtype`. Raises ModelError if a number exceeds its range."""
        self._report(spec)
        return _cast(spec.name, self.model.tensor(spec.name), dtype)

    def _report(self, spec: TensorSpec) -> None:
        self.progress("writing", self.specs.index(spec), len(self.specs))

    def swapped(self, spec: TensorSpec, name: str, *, dtype: np.dtype[Any] | None = None) -> TensorEntry:
        """Return the output file's entry for a tensor with its last two dimensions swapped; see `entry`."""
        *leading, rows, columns = self.model.tensors[spec.name].shape
        return self.entry(
            spec, name, dtype=dtype, shape=(*leading, columns, rows), transform=lambda tensor: tensor.swapaxes(-1, -2)
        )


def _cast(name: str, tensor: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if tensor.dtype == dtype:
        return tensor
    with np.errstate(over="ignore"):
        result = tensor.astype(dtype)
    if np.isfinite(tensor).all() and not np.isfinite(result).all():
        raise ModelError(f"{name} has numbers beyond the range of {dtype.name}; expected another type")
    return result


# Files in BlinkDL's names: safetensors and .pth.


def write_blinkdl_safetensors(file: IO[bytes], source: ConversionSource) -> None:
    """Write a model as a safetensors file with BlinkDL's tensor names.

    Matrices may be in quantised blocks; `tensor_files.safetensors_file` describes how these are stored.
    """
    formats = {spec.name: source.block_format(spec) for spec in source.specs}
    plain = [_blinkdl_entry(source, spec) for spec in source.specs if formats[spec.name] is None]
    quantised: list[TensorEntry] = []
    matrices: dict[str, StoredMatrix] = {}
    for spec in source.specs:
        if (block_format := formats[spec.name]) is not None:
            num_rows, num_columns = source.model.tensors[spec.name].shape
            matrix = matrices[spec.file_name] = StoredMatrix(block_format, num_columns)
            quantised += _quantised(source, spec, matrix, num_rows)
    noted = describe_matrices(matrices) if matrices else {}
    write_safetensors(file, [*widest_first(plain), *quantised], {"format": "pt", **noted})


def _quantised(
    source: ConversionSource, spec: TensorSpec, matrix: StoredMatrix, num_rows: int
) -> Iterator[TensorEntry]:
    """Yield a matrix's codes and figures, to be read in this order: the second reading releases the matrix."""
    read: list[Blocks] = []

    def read_codes() -> NDArray[Any]:
        read.append(source.read_blocks(spec, matrix.format))
        return read[0].codes

    shapes = matrix.shapes(num_rows)
    yield TensorEntry(spec.file_name + CODES, TensorInfo(shapes[CODES], np.dtype(np.uint8)), read_codes)
    yield TensorEntry(spec.file_name + FIGURES, TensorInfo(shapes[FIGURES], F16), lambda: read.pop().figures)


def write_blinkdl_pth(file: IO[bytes], source: ConversionSource) -> None:
    """Write a model as a torch `.pth` file with BlinkDL's tensor names."""
    write_pth(file, [_blinkdl_entry(source, spec) for spec in source.specs])


def _blinkdl_entry(source: ConversionSource, spec: TensorSpec) -> TensorEntry:
    own = source.model.tensors[spec.name].shape
    shape = (1,) * (spec.file_axes - len(own)) + tuple(own)
    return source.entry(spec, spec.file_name, shape=shape, transform=lambda tensor: tensor.reshape(shape))


# ai00's `.st` files: BlinkDL's tensors in f16, some under other names and transposed; and ai00's names of sizes.

_VERSIONS: Final = ("v4", "v5.1", "v5.2", "v6", "v7")


class Ai00ModelInfo(TypedDict):
    """The description of a model in ai00's API and files: its version and sizes.

    `custom` maps the version to the ranks of its low-rank adapters; it is "None" for versions without adapters.
    """

    version: str
    num_layer: int
    num_emb: int
    num_hidden: int
    num_vocab: int
    num_head: int
    custom: dict[str, dict[str, int]] | Literal["None"]


def model_info(shape: ModelShape) -> Ai00ModelInfo:
    """Return the sizes of a model under ai00's names. A variant such as v5.2 is described as its version, V5."""
    custom: dict[str, dict[str, int]] | Literal["None"] = "None"
    match shape:
        case ShapeV7():
            ranks = shape.ranks
            custom = {"V7": {"w": ranks.w, "a": ranks.a, "g": ranks.g, "v": ranks.v}}
        case ShapeV6():
            custom = {"V6": {"time_mix": shape.mix_rank, "time_decay": shape.decay_rank}}
    return {
        "version": shape.version[:2].upper(),
        "num_layer": shape.num_layers,
        "num_emb": shape.width,
        "num_hidden": shape.sizes["ffn_width"],
        "num_vocab": shape.vocab_size,
        "num_head": shape.sizes.get("num_heads", 1),
        "custom": custom,
    }


def write_st(file: IO[bytes], source: ConversionSource) -> None:
    """Write a model as ai00's `.st` file. Raises ModelError as `check_ai00` does."""
    check_ai00(source, "an .st file")
    write_safetensors(file, list(_ai00_entries(source)), {})


def check_ai00(source: ConversionSource, file: str) -> None:
    """Raise ModelError if ai00 does not support the model's version, or if a weight format other than f16 is chosen.

    `file` names the kind of file in the message.
    """
    if source.shape.version not in _VERSIONS:
        raise ModelError(f"ai00 does not run RWKV {source.shape.version}; expected one of {', '.join(_VERSIONS)}")
    for spec in source.specs:
        chosen = source.format_of(spec.name) if is_matrix(spec) else None
        if chosen is not None and chosen.name != "f16":
            raise ModelError(f"{spec.name} can't be {chosen.name} in {file}; expected --weights f16")


def _ai00_entries(source: ConversionSource) -> Iterator[TensorEntry]:
    for spec in source.specs:
        name = spec.ai00_name or spec.name
        if isinstance(source.shape, ShapeV5) and spec.dims == ("H",):
            yield _repeated(source, spec, source.shape)
        elif spec.ai00_swaps:
            yield source.swapped(spec, name, dtype=F16)
        else:
            yield source.entry(spec, name, dtype=F16)


def _repeated(source: ConversionSource, spec: TensorSpec, shape: ShapeV5) -> TensorEntry:
    """Return the entry for a tensor of RWKV-5.1 with one number a head: ai00 has one for each channel."""
    size = (shape.num_heads, shape.head_size)
    return source.entry(
        spec,
        spec.name.replace("time_faaaa", "time_first"),
        dtype=F16,
        shape=size,
        transform=lambda tensor: np.broadcast_to(tensor[:, np.newaxis], size),
    )


# Folders of flash-linear-attention, which Hugging Face's transformers library loads: config.json and one safetensors
# file.

_NORM_EPSILON: Final = 1e-5
_THREE_DIMENSIONS: Final = (".att.x_r", ".att.x_w", ".att.x_k", ".att.x_v", ".att.x_a", ".att.x_g")


def write_fla(folder: Path, source: ConversionSource) -> None:
    """Write a model to an empty folder as flash-linear-attention's config.json and model.safetensors.

    Raises ModelError for a version other than v7, for a tuned state, and for an epsilon of the group norm other than
    the library's, 1e-5 times the size of a head.
    """
    shape = source.shape
    if not isinstance(shape, ShapeV7) or shape.version != "v7":
        raise ModelError(f"a folder of flash-linear-attention can't hold RWKV {shape.version}; expected v7")
    epsilon = _NORM_EPSILON * shape.head_size
    if not isclose(shape.group_norm_epsilon, epsilon, rel_tol=1e-6):
        raise ModelError(
            f"the group norm of heads of size {shape.head_size} has the epsilon {shape.group_norm_epsilon:g}; "
            f"expected {epsilon:g}, the only one that flash-linear-attention supports"
        )
    if lost := [spec.name for spec in source.specs if spec.name.endswith(".time_state")]:
        raise ModelError(f"flash-linear-attention has no place for {lost[0]}; expected a model without a tuned state")
    unused = {f"blocks.0.att.v{number}" for number in "012"}  # flash-linear-attention has no modules for them
    entries = [_entry(source, spec) for spec in source.specs if spec.name not in unused]
    with atomic_file(folder / "config.json") as file:
        file.write(json.dumps(_config(shape, source), indent=2).encode() + b"\n")
    with atomic_file(folder / "model.safetensors") as file:
        write_safetensors(file, widest_first(entries), {"format": "pt"})


def _entry(source: ConversionSource, spec: TensorSpec) -> TensorEntry:
    name = fla_name(spec.name)
    if is_transposed(spec.name):
        return source.swapped(spec, name)
    if spec.name.endswith(_THREE_DIMENSIONS):
        shape = (1, 1, source.shape.width)
        return source.entry(spec, name, shape=shape, transform=lambda tensor: tensor.reshape(shape))
    return source.entry(spec, name)


def _config(shape: ShapeV7, source: ConversionSource) -> dict[str, Any]:
    return {
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": "rwkv7",
        "a_low_rank_dim": shape.ranks.a,
        "attn": None,
        "attn_mode": "chunk",
        "bos_token_id": 0,
        "decay_low_rank_dim": shape.ranks.w,
        "eos_token_id": 0,
        "fuse_norm": False,
        "gate_low_rank_dim": shape.ranks.g,
        "head_dim": shape.head_size,
        "hidden_act": "sqrelu",
        "hidden_ratio": shape.sizes["ffn_width"] / shape.width,
        "hidden_size": shape.width,
        "intermediate_size": shape.sizes["ffn_width"],
        "max_position_embeddings": 2048,
        "norm_bias": True,
        "norm_eps": _NORM_EPSILON,
        "norm_first": True,
        "num_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "tie_word_embeddings": False,
        "torch_dtype": source.dtype(next(spec for spec in source.specs if spec.name == "head.weight")).name,
        "use_cache": True,
        "v_low_rank_dim": shape.ranks.v,
        "value_dim": [shape.width] * shape.num_layers,
        "vocab_size": shape.vocab_size,
    }
