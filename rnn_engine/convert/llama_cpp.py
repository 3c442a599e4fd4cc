"""Write GGUF files as llama.cpp's converter writes them for RWKV-6 and RWKV-7: names, transforms and metadata.

Large matrices have the chosen type; all other tensors are f32, which llama.cpp's forward pass needs for most of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.convert.writers import F32, ConversionSource, is_matrix
from rnn_engine.errors import ModelError
from rnn_engine.model.ggml import list_llama_cpp_names, locate_llama_cpp
from rnn_engine.model.layout import TensorSpec
from rnn_engine.model.stored import Rows, StoredPart, StoredTensor
from rnn_engine.quantised import BlockFormat
from rnn_engine.quantised.gguf_blocks import is_gguf_block, write_blocks
from rnn_engine.tensor_files.gguf_file import GgufVocabulary, Metadata, Value, write_gguf
from rnn_engine.tensor_files.source import TensorEntry, TensorInfo
from rnn_engine.tokenizer import Tokenizer, load_tokenizer
from rnn_engine.types import ModelShape
from rnn_engine.versions.v6.layout import ShapeV6
from rnn_engine.versions.v7.layout import ShapeV7

_CONTEXT_LENGTH: Final = 1 << 20  # llama.cpp's converter writes this for a model without a limit
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5  # llama.cpp's kinds of tokens
_STAND_INS: Final = {f"time_mix_v{number}.weight": f"time_mix_a{number}.weight" for number in "012"}
"""Tensors in llama.cpp's files that layer 0 of RWKV-7 does not use -> the tensors that are written in their place."""


def write_llama_cpp(file: IO[bytes], source: ConversionSource) -> None:
    """Write a model as a GGUF file that llama.cpp can run.

    The file gets the vocabulary of the tokenizer that the engine finds for the model, if it is World's or another
    GGUF file's. Raises ModelError for a version that llama.cpp does not support, and for a tuned state.
    """
    shape = source.shape
    architecture = _architecture(shape)
    if lost := [spec.name for spec in source.specs if spec.name.endswith(".time_state")]:
        raise ModelError(f"a GGUF file can't hold {lost[0]}; expected a model without a tuned state")
    values = {f"{architecture}.{key}": value for key, value in _metadata(shape).items()}
    entries = list(_entries(source, {"general.architecture": architecture, **values}))
    vocabulary = _vocabulary(load_tokenizer("auto", source.model.path, shape.vocab_size), shape.vocab_size)
    if vocabulary is None:
        values |= {"tokenizer.ggml.model": "none", f"{architecture}.vocab_size": shape.vocab_size}
    else:
        values |= {"tokenizer.ggml.model": "rwkv", **{f"tokenizer.ggml.{kind}_token_id": 0 for kind in ("bos", "eos")}}
    write_gguf(file, architecture, values, vocabulary, entries)


def _architecture(shape: ModelShape) -> str:
    if shape.version not in ("v6", "v7"):
        raise ModelError(f"no GGUF file can be written of RWKV {shape.version}; expected v6 or v7")
    return f"rwkv{shape.version.removeprefix('v')}"


def _metadata(shape: ModelShape) -> dict[str, Value]:
    values: dict[str, Value] = {
        "context_length": _CONTEXT_LENGTH,
        "embedding_length": shape.width,
        "block_count": shape.num_layers,
        "feed_forward_length": shape.sizes["ffn_width"],
        "attention.head_count": 0,
        "attention.layer_norm_epsilon": 1e-5,
        "wkv.head_size": shape.sizes["head_size"],
    }
    match shape:
        case ShapeV7():
            values |= {
                "attention.decay_lora_rank": shape.ranks.w,
                "attention.iclr_lora_rank": shape.ranks.a,
                "attention.value_residual_mix_lora_rank": shape.ranks.v,
                "attention.gate_lora_rank": shape.ranks.g,
            }
        case ShapeV6():
            values |= {
                "rescale_every_n_layers": 0,
                "time_mix_extra_dim": shape.mix_rank,
                "time_decay_extra_dim": shape.decay_rank,
            }
    return values


def _vocabulary(tokenizer: Tokenizer, size: int) -> GgufVocabulary | None:
    """Return a vocabulary of `size` tokens for a GGUF file; None unless the tokenizer is World's or a GGUF file's."""
    if tokenizer.name not in ("world", "gguf"):
        return None
    pieces = [tokenizer.decode_bytes(token) for token in range(size)]
    tokens = [repr(piece)[2:-1].encode() if piece else f"[PAD{token}]".encode() for token, piece in enumerate(pieces)]
    kinds = [_NORMAL if piece else _UNUSED for piece in pieces]
    return GgufVocabulary([b"<s>", *tokens[1:]], [_CONTROL, *kinds[1:]])


def _entries(source: ConversionSource, metadata: Metadata) -> Iterator[TensorEntry]:
    """Yield each tensor of the GGUF file: `locate_llama_cpp` in reverse, with several stacked in one."""
    specs = {spec.name: spec for spec in source.specs}
    names = list(list_llama_cpp_names(metadata["general.architecture"], source.shape.num_layers))
    places: dict[str, dict[str, StoredTensor]] = {name: {} for name in names}
    for name, place in locate_llama_cpp(metadata, names).items():
        places[place.name][name] = place
    for name, parts in places.items():
        if not parts:
            stand_in = re.sub("time_mix_v[012].weight", lambda match: _STAND_INS[match[0]], name)
            parts = places[stand_in]
        (first, place), *others = parts.items()
        if others or _index(place) is not None:
            stacked = sorted(parts, key=lambda part: _index(parts[part]) or 0)
            yield _stacked(source, name, [specs[each] for each in stacked])
        else:
            yield _single(source, name, specs[first], place)


def _index(place: StoredTensor) -> int | None:
    """Return a tensor's index in the GGUF tensor that stores several; None if it is stored by itself."""
    return next((step.index for step in place.steps if isinstance(step, StoredPart)), None)


def _stacked(source: ConversionSource, name: str, specs: list[TensorSpec]) -> TensorEntry:
    def read() -> NDArray[Any]:
        return np.stack([source.read(spec, F32) for spec in specs]).reshape(info.shape)

    info = TensorInfo((len(specs), 1, 1, source.shape.width), F32)
    return TensorEntry(name, info, read)


def _single(source: ConversionSource, name: str, spec: TensorSpec, place: StoredTensor) -> TensorEntry:
    if place.swapped:
        return source.swapped(spec, name, dtype=F32)
    if any(isinstance(step, Rows) for step in place.steps):
        size = prod(source.model.tensors[spec.name].shape)
        return source.entry(spec, name, dtype=F32, shape=(size,), transform=lambda tensor: tensor.reshape(-1))
    block_format = source.block_format(spec)
    if block_format is not None:
        return _in_blocks(source, name, spec, block_format)
    return source.entry(spec, name, dtype=None if is_matrix(spec) else F32)


def _in_blocks(source: ConversionSource, name: str, spec: TensorSpec, block_format: BlockFormat) -> TensorEntry:
    """Return the entry for a matrix in blocks. Raises ModelError for blocks that GGUF or this matrix can't have."""
    block_type = block_format.name.upper()
    shape = source.model.tensors[spec.name].shape
    if not is_gguf_block(block_type):
        raise ModelError(
            f"a GGUF file can't hold {spec.name} in {block_format.name}; expected q8_0, q4_0, q4_1, q4_k, q5_k or q6_k"
        )
    if shape[1] % block_format.block_columns:
        multiple = f"a multiple of {block_format.block_columns} for {block_format.name}"
        raise ModelError(f"{spec.name} has rows of {shape[1]} numbers; expected {multiple}")
    info = TensorInfo(shape, F32, block_type)
    return TensorEntry(name, info, lambda: write_blocks(source.read_blocks(spec, block_format)))
