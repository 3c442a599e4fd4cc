"""Writing of models as llama.cpp's converter does, with its names, transforms and metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants
from numpy.typing import NDArray

from rnn_engine.tokenizer.huggingface import byte_level_alphabet
from rnn_engine.types import ModelShape
from rnn_engine.versions.qwen2 import ShapeV6Qwen2, ShapeV7Qwen2
from rnn_engine.versions.v6.layout import ShapeV6
from tests.support.models import TensorModel

Tensors = Mapping[str, NDArray[Any]]

_RENAMED = (  # BlinkDL's name -> llama.cpp's, for both versions; the first that fits
    (r"emb\.weight", "token_embd.weight"),
    (r"head\.weight", "output.weight"),
    (r"ln_out\.(\w+)", r"output_norm.\1"),
    (r"blocks\.0\.ln0\.(\w+)", r"token_embd_norm.\1"),
    (r"blocks\.(\d+)\.ln1\.(\w+)", r"blk.\1.attn_norm.\2"),
    (r"blocks\.(\d+)\.ln2\.(\w+)", r"blk.\1.attn_norm_2.\2"),
    (r"blocks\.(\d+)\.att\.ln_x\.(\w+)", r"blk.\1.time_mix_ln.\2"),
    (r"blocks\.(\d+)\.ffn\.(gate|up|down)\.weight", r"blk.\1.ffn_\2.weight"),
    (r"blocks\.(\d+)\.att\.(\w+)\.bias", r"blk.\1.time_mix_\2.bias"),
    (r"blocks\.(\d+)\.att\.(\w+)\.weight", r"blk.\1.time_mix_\2.weight"),
    (r"blocks\.(\d+)\.ffn\.(\w+)\.weight", r"blk.\1.channel_mix_\2.weight"),
    (r"blocks\.(\d+)\.ffn\.(?:x|time_maa)_(\w)", r"blk.\1.channel_mix_lerp_\2.weight"),
    (r"blocks\.(\d+)\.att\.(?:x|time_maa)_([rwkvagx])", r"blk.\1.time_mix_lerp_\2.weight"),
    (r"blocks\.(\d+)\.att\.time_faaaa", r"blk.\1.time_mix_first.weight"),
    (r"blocks\.(\d+)\.att\.time_maa_(w[12])", r"blk.\1.time_mix_\2.weight"),
    (r"blocks\.(\d+)\.att\.time_(decay\w*)", r"blk.\1.time_mix_\2.weight"),
    (r"blocks\.(\d+)\.att\.(\w+)", r"blk.\1.time_mix_\2.weight"),
)
_TRANSPOSED = re.compile(r".*\.time_mix_(decay_)?[wavg][12]\.weight")
_RESCALED = re.compile(r"blk\.(\d+)\.(time_mix_output|channel_mix_value)\.weight")


def llama_cpp_tensors(model: TensorModel, *, rescale_every: int = 0, fused: bool = True) -> dict[str, NDArray[Any]]:
    """Return the tensors that llama.cpp's converter writes for RWKV-6 or RWKV-7, or for one in a Qwen2's body."""
    tensors = {_rename(name): values for name, values in model.tensors.items()}
    if model.shape.version.endswith("qwen2"):
        tensors = {name.replace("attn_norm_2", "ffn_norm"): values for name, values in tensors.items()}
    for name, values in tensors.items():
        if _TRANSPOSED.fullmatch(name):
            tensors[name] = values.swapaxes(-1, -2)
        elif name.endswith(("time_mix_r_k.weight", "time_mix_decay.weight")):
            tensors[name] = values.reshape(-1)
        elif rescale_every and (match := _RESCALED.fullmatch(name)):
            tensors[name] = values / np.float32(2 ** (int(match[1]) // rescale_every))
    if fused:
        _fuse_mixes(tensors, model.shape)
    if model.shape.version.startswith("v7"):
        for number in "012":  # dummies that are not used
            tensors[f"blk.0.time_mix_v{number}.weight"] = tensors[f"blk.0.time_mix_a{number}.weight"]
    return tensors


def _fuse_mixes(tensors: dict[str, NDArray[Any]], shape: ModelShape) -> None:
    letters = "rwkvag" if shape.version.startswith("v7") else "wkvrg"
    for layer in range(shape.num_layers):
        letters = letters if f"blk.{layer}.time_mix_lerp_g.weight" in tensors else letters.removesuffix("g")
        mixes = [tensors.pop(f"blk.{layer}.time_mix_lerp_{letter}.weight") for letter in letters]
        tensors[f"blk.{layer}.time_mix_lerp_fused.weight"] = np.stack(mixes).reshape(len(letters), 1, 1, -1)


def metadata(shape: ModelShape, *, rescale_every: int = 0) -> dict[str, object]:
    """Return the metadata that llama.cpp's converter writes."""
    values: dict[str, object] = {
        "context_length": 1048576,
        "embedding_length": shape.width,
        "block_count": shape.num_layers,
        "attention.layer_norm_epsilon": 1e-5,
        "wkv.head_size": shape.sizes["head_size"],
        "feed_forward_length": shape.sizes["ffn_width"],
        "attention.head_count": 0,
    }
    match shape:
        case ShapeV6Qwen2():
            values |= {"time_mix_extra_dim": shape.mix_rank, "time_decay_extra_dim": shape.decay_rank}
            values["attention.head_count_kv"] = shape.num_kv_heads
        case ShapeV7Qwen2():
            kinds = {"decay": "w", "iclr": "a", "value_residual_mix": "v", "gate": "g"}
            values |= {f"attention.{name}_lora_rank": getattr(shape.ranks, kind) for name, kind in kinds.items()}
        case ShapeV6():
            values["rescale_every_n_layers"] = rescale_every
    if not shape.norm.centres:
        values |= {"attention.layer_norm_rms_epsilon": shape.norm.epsilon, "token_shift_count": 1}
        del values["attention.layer_norm_epsilon"]
    return {f"{_architecture(shape)}.{key}": value for key, value in values.items()}


def bpe_vocabulary(size: int) -> dict[str, object]:
    """Return the metadata of a vocabulary of single bytes, with a merge, and special tokens as Qwen2's at its end."""
    fillers = ["ab", *(f"<{number}>" for number in range(size))]
    plain = [*byte_level_alphabet(), *fillers][: size - 3]
    tokens = [*plain, "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    kinds = [1] * (size - 3) + [3] * 3
    values: dict[str, object] = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": tokens,
        "token_type": kinds,
        "merges": ["a b"],
        "eos_token_id": size - 1,
    }
    return {f"tokenizer.ggml.{key}": each for key, each in values.items()}


def save_gguf(
    model: TensorModel,
    path: Path,
    matrices: str = "F32",
    *,
    rescale_every: int = 0,
    fused: bool = True,
    tokens: Sequence[bytes] = (),
    more: Mapping[str, object] | None = None,
    tensors_a_part: int = 0,
) -> Path:
    """Write `model` with its large matrices in the type `matrices`. `more` adds to or replaces the usual metadata.

    With `tensors_a_part`, the model is split into files with as many tensors, whose names begin with that of `path`.
    """
    tensors = llama_cpp_tensors(model, rescale_every=rescale_every, fused=fused)
    described = metadata(model.shape, rescale_every=rescale_every) | dict(more or {})
    return write_gguf(
        path, _architecture(model.shape), described, tensors, matrices, tokens, tensors_a_part=tensors_a_part
    )


def write_gguf(
    path: Path,
    architecture: str,
    described: Mapping[str, object],
    tensors: Tensors,
    matrices: str = "F32",
    tokens: Sequence[bytes] = (),
    encoded: Mapping[str, GGMLQuantizationType] | None = None,
    *,
    tensors_a_part: int = 0,
) -> Path:
    """Write tensors under their given names. Those that llama.cpp quantises are written in the type `matrices`.

    If `encoded` has a type for a tensor, its values are bytes of that type.
    """
    writer = GGUFWriter(path, architecture, split_max_tensors=tensors_a_part)
    for key, value in described.items():
        _add_value(writer, key, value)
    if tokens:
        writer.add_tokenizer_model("rwkv")
        writer.add_token_list(list(tokens))
        writer.add_token_types([3 if number == 0 else 1 for number in range(len(tokens))])
    for name, values in tensors.items():
        if encoded and name in encoded:
            writer.add_tensor(name, values, raw_dtype=encoded[name])
            continue
        kind = GGMLQuantizationType[matrices if _is_quantised(name, values) else "F32"]
        writer.add_tensor(name, encode(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def encode(values: NDArray[Any], kind: GGMLQuantizationType) -> NDArray[Any]:
    """Return numbers encoded in a type of GGUF files."""
    contiguous = np.ascontiguousarray(values, np.float32)
    match kind.name:
        case "F32":
            return contiguous
        case "F16":
            return contiguous.astype(np.float16)
        case "BF16":
            return contiguous.astype(ml_dtypes.bfloat16).view(np.uint8)
    return quants.quantize(contiguous, kind)


def _is_quantised(name: str, values: NDArray[Any]) -> bool:
    return name.endswith(".weight") and values.ndim == 2 and not re.search(r"_(w|a|v|g)[12]\.|_first\.|_lerp_", name)


def _rename(name: str) -> str:
    return next(re.sub(pattern, replacement, name) for pattern, replacement in _RENAMED if re.fullmatch(pattern, name))


def _architecture(shape: ModelShape) -> str:
    hybrids = {"v6-qwen2": "rwkv6qwen2", "v7-qwen2": "arwkv7"}
    return hybrids.get(shape.version, f"rwkv{shape.version.removeprefix('v')}")


def _add_value(writer: GGUFWriter, key: str, value: object) -> None:
    match value:
        case float():
            writer.add_float32(key, value)
        case int():
            writer.add_uint32(key, value)
        case list():
            writer.add_array(key, value)
        case _:
            writer.add_string(key, str(value))
