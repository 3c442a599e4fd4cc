"""Write GGUF files as llama.cpp's converter writes them for RWKV-6, RWKV-7 and their like in the body of a Qwen2.

Large matrices have the chosen type; all other tensors are f32, which llama.cpp's forward pass needs for most of them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.chat_template import WorldTemplate
from rnn_engine.chat_template.jinja import JinjaTemplate
from rnn_engine.convert.writers import F32, ConversionSource, is_matrix
from rnn_engine.errors import ModelError
from rnn_engine.hub import model_name
from rnn_engine.loading.chat_template import SPECIAL_KEYS, WORLD_KEY, load_chat_template, world_settings
from rnn_engine.model.ggml import list_llama_cpp_names, locate_llama_cpp
from rnn_engine.model.layout import TensorSpec
from rnn_engine.model.stored import Rows, StoredPart, StoredTensor
from rnn_engine.quantised import BlockFormat
from rnn_engine.quantised.gguf_blocks import is_gguf_block, write_blocks
from rnn_engine.tensor_files.formats import gguf_metadata
from rnn_engine.tensor_files.gguf_file import Metadata, write_gguf
from rnn_engine.tensor_files.source import TensorEntry, TensorInfo
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine.tokenizer.world import UNUSED, gguf_vocabulary
from rnn_engine.types import ModelShape
from rnn_engine.versions.qwen2 import ShapeV6Qwen2
from rnn_engine.versions.v6.layout import ShapeV6
from rnn_engine.versions.v7.layout import ShapeV7

_CONTEXT_LENGTH: Final = 1 << 20  # llama.cpp's converter writes this for a model without a limit
_ARCHITECTURES: Final = {"v6": "rwkv6", "v7": "rwkv7", "v6-qwen2": "rwkv6qwen2", "v7-qwen2": "arwkv7"}
_NOT_COPIED: Final = ("architecture", "alignment", "file_type", "quantization_version")  # keys of the file alone
_log = logging.getLogger(__name__)
_STAND_INS: Final = {f"time_mix_v{number}.weight": f"time_mix_a{number}.weight" for number in "012"}
"""Tensors in llama.cpp's files that layer 0 of RWKV-7 does not use -> the tensors that are written in their place."""


def write_llama_cpp(file: IO[bytes], source: ConversionSource) -> None:
    """Write a model as a GGUF file that llama.cpp can run.

    The file gets the tokenizer and the chat template that the engine finds for the model. Raises ModelError for a
    version that llama.cpp does not support, and for a tuned state.
    """
    shape = source.shape
    architecture = _ARCHITECTURES.get(shape.version)
    if architecture is None:
        allowed = ", ".join(_ARCHITECTURES)
        raise ModelError(f"no GGUF file can be written of RWKV {shape.version}; expected one of {allowed}")
    if lost := [spec.name for spec in source.specs if spec.name.endswith(".time_state")]:
        raise ModelError(f"a GGUF file can't hold {lost[0]}; expected a model without a tuned state")
    values = {f"{architecture}.{key}": value for key, value in _metadata(shape).items()}
    entries = list(_entries(source, {"general.architecture": architecture, **values}))
    values |= _texts(source)
    if values["tokenizer.ggml.model"] == "none":
        values[f"{architecture}.vocab_size"] = shape.vocab_size
    write_gguf(file, architecture, values, entries)


def _texts(source: ConversionSource) -> dict[str, Any]:
    """Return the metadata with a model's name, tokenizer and chat template; a GGUF file's own are copied."""
    path, size = source.model.path, source.shape.vocab_size
    own = gguf_metadata(path)
    values: dict[str, Any] = {"general.name": model_name(path)}
    values |= {
        key: value
        for key, value in own.items()
        if key.startswith(("general.", "tokenizer.")) and key.removeprefix("general.") not in _NOT_COPIED
    }
    special: Mapping[str, int] = {}  # of a tokenizer that is no GGUF file's
    if own.get("tokenizer.ggml.model", "none") == "none":
        tokenizer = load_tokenizer("auto", path, size)
        special = tokenizer.special_tokens
        values |= gguf_vocabulary(tokenizer, size)
        if values["tokenizer.ggml.model"] == "none" and tokenizer.name != "none":
            _log.warning("llama.cpp can't read the tokenizer %s: only this engine will tokenize texts", tokenizer.name)
    elif missing := range(len(own.get("tokenizer.ggml.tokens", ())), size):
        values["tokenizer.ggml.tokens"] = [*own["tokenizer.ggml.tokens"], *(b"[PAD%d]" % token for token in missing)]
        values["tokenizer.ggml.token_type"] = [*own["tokenizer.ggml.token_type"].tolist(), *[UNUSED] * len(missing)]
    template = load_chat_template("auto", path)
    if isinstance(template, JinjaTemplate):
        values["tokenizer.chat_template"] = template.source
        for name, text in template.special_tokens.items():
            if text in special:
                values[f"tokenizer.ggml.{SPECIAL_KEYS[name]}"] = special[text]
    elif isinstance(template, WorldTemplate):
        values.setdefault("tokenizer.chat_template", "rwkv-world")
        if settings := world_settings(template):
            values[WORLD_KEY] = json.dumps(settings)
    return values


def _metadata(shape: ModelShape) -> dict[str, Any]:
    values: dict[str, Any] = {
        "context_length": _CONTEXT_LENGTH,
        "embedding_length": shape.width,
        "block_count": shape.num_layers,
        "feed_forward_length": shape.sizes["ffn_width"],
        "attention.head_count": 0,
        "wkv.head_size": shape.sizes["head_size"],
    }
    if shape.norm.centres:
        values["attention.layer_norm_epsilon"] = shape.norm.epsilon
    else:
        values |= {"attention.layer_norm_rms_epsilon": shape.norm.epsilon, "token_shift_count": 1}
    match shape:
        case ShapeV7():
            values |= {
                "attention.decay_lora_rank": shape.ranks.w,
                "attention.iclr_lora_rank": shape.ranks.a,
                "attention.value_residual_mix_lora_rank": shape.ranks.v,
                "attention.gate_lora_rank": shape.ranks.g,
            }
        case ShapeV6():
            values |= {"time_mix_extra_dim": shape.mix_rank, "time_decay_extra_dim": shape.decay_rank}
            if isinstance(shape, ShapeV6Qwen2):
                values["attention.head_count_kv"] = shape.num_kv_heads
            else:
                values["rescale_every_n_layers"] = 0
    return values


def _entries(source: ConversionSource, metadata: Metadata) -> Iterator[TensorEntry]:
    """Yield each tensor of the GGUF file: `locate_llama_cpp` in reverse, with several stacked in one."""
    specs = {spec.name: spec for spec in source.specs}
    names = list(list_llama_cpp_names(metadata["general.architecture"], source.shape.num_layers, specs))
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
