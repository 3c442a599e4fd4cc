"""Find the tensors of a model in llama.cpp's GGUF files.

In these files, the token shift mixes of a layer's time mix lie in one tensor, the adapters are transposed, and
RWKV-7's r_k is flat. Layer 0 of RWKV-7 has a copy of another adapter for the value residual, which it does not use.
Models with RWKV's time mixing in the body of a Qwen2 (rwkv6qwen2, arwkv7) have the same tensors for that. For
RWKV-6, llama.cpp halves the residual after every `rescale_every_n_layers` layers, and its files have the matrices that
write to the residual divided likewise; here they are scaled back. Sizes come from the tensors; metadata that
contradicts them is an error.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from rnn_engine.errors import ModelError
from rnn_engine.model.layout import check_none_missing
from rnn_engine.model.stored import Rows, Scale, StoredPart, StoredStep, StoredTensor, Swap
from rnn_engine.tensor_files.gguf_file import Metadata
from rnn_engine.tensor_files.source import count, show, show_all
from rnn_engine.types import ModelShape

_BLOCK: Final = re.compile(r"blk\.([0-9]{1,6})\.(.*)")
_MOST_HALVINGS: Final = 64

_BOTH: Final = ("weight", "bias")
_MODEL_NAMES: Final = {
    "token_embd.weight": "emb.weight",
    "output.weight": "head.weight",
    **{f"token_embd_norm.{part}": f"blocks.0.ln0.{part}" for part in _BOTH},
    **{f"output_norm.{part}": f"ln_out.{part}" for part in _BOTH},
}
_LAYER_NAMES: Final = {
    **{f"attn_norm.{part}": f"ln1.{part}" for part in _BOTH},
    **{f"attn_norm_2.{part}": f"ln2.{part}" for part in _BOTH},
    **{f"channel_mix_{name}.weight": f"ffn.{name}.weight" for name in ("key", "value")},
}
_GROUP_NORM: Final = {f"time_mix_ln.{part}": f"att.ln_x.{part}" for part in _BOTH}
_TIME_MIX: Final = {
    f"time_mix_{name}.weight": f"att.{name}.weight" for name in ("key", "value", "receptance", "output")
}
_TIME_MIX_V6: Final = {
    **_TIME_MIX,
    "time_mix_gate.weight": "att.gate.weight",
    "time_mix_lerp_x.weight": "att.time_maa_x",
    **{f"time_mix_{name}.weight": f"att.time_maa_{name}" for name in ("w1", "w2")},
    **{f"time_mix_{name}.weight": f"att.time_{name}" for name in ("decay", "decay_w1", "decay_w2")},
}
_TIME_MIX_V7: Final = {
    **_TIME_MIX,
    **_GROUP_NORM,
    **{
        f"time_mix_{name}.weight": f"att.{name}"
        for name in ("w0", "w1", "w2", "a0", "a1", "a2", "v0", "v1", "v2", "g1", "g2", "k_k", "k_a", "r_k")
    },
}
_BIASES: Final = {f"time_mix_{name}.bias": f"att.{name}.bias" for name in ("receptance", "key", "value")}
_QWEN2_NAMES: Final = {
    name: own for name, own in _MODEL_NAMES.items() if name.endswith(".weight") and name != "token_embd_norm.weight"
}
_QWEN2_LAYER_NAMES: Final = {
    "attn_norm.weight": "ln1.weight",
    "ffn_norm.weight": "ln2.weight",
    **{f"ffn_{name}.weight": f"ffn.{name}.weight" for name in ("gate", "up", "down")},
}
_SWAPPED_V6: Final = frozenset(f"time_mix_{name}.weight" for name in ("w1", "w2", "decay_w1", "decay_w2"))
_SWAPPED_V7: Final = frozenset(f"time_mix_{kind}{number}.weight" for kind in "wavg" for number in "12")
_GATE: Final = frozenset(f"time_mix_g{number}.weight" for number in "12")
_FUSED: Final = "time_mix_lerp_fused.weight"
_COMMON_SIZES: Final = {
    "block_count": "num_layers",
    "embedding_length": "width",
    "feed_forward_length": "ffn_width",
    "wkv.head_size": "head_size",
}


@dataclass(frozen=True, slots=True)
class _Architecture:
    """How llama.cpp's GGUF files store the layers of one version of RWKV: names, transposed and divided tensors.

    `names` maps llama.cpp's name of each tensor of a layer to BlinkDL's, except for the fused mixes; `model_names` does
    so for the tensors outside the layers. Without the gate's adapter, the fused mixes lack their last row.
    """

    names: Mapping[str, str]
    swapped: frozenset[str]
    halved: frozenset[str]  # those that are divided when the residual is halved
    mix: str  # BlinkDL's name of a mix, without its letter
    mixes: str  # the letters of the fused mixes, in their order
    by_heads: frozenset[str]  # flat tensors that have a row for each head
    model_names: Mapping[str, str] = field(default_factory=lambda: _MODEL_NAMES)
    optional: frozenset[str] = frozenset()


_RWKV6: Final = _Architecture(
    names={
        **_LAYER_NAMES,
        **_TIME_MIX_V6,
        **_GROUP_NORM,
        "channel_mix_receptance.weight": "ffn.receptance.weight",
        **{f"channel_mix_lerp_{kind}.weight": f"ffn.time_maa_{kind}" for kind in "kr"},
        "time_mix_first.weight": "att.time_faaaa",
    },
    swapped=_SWAPPED_V6,
    halved=frozenset({"time_mix_output.weight", "channel_mix_value.weight"}),
    mix="att.time_maa_",
    mixes="wkvrg",
    by_heads=frozenset(),
)
_RWKV7: Final = _Architecture(
    names={**_LAYER_NAMES, **_TIME_MIX_V7, "channel_mix_lerp_k.weight": "ffn.x_k"},
    swapped=_SWAPPED_V7,
    halved=frozenset(),
    mix="att.x_",
    mixes="rwkvag",
    by_heads=frozenset({"time_mix_r_k.weight"}),
)
_ARCHITECTURES: Final = {
    "rwkv6": _RWKV6,
    "rwkv7": _RWKV7,
    "rwkv6qwen2": replace(
        _RWKV6,
        names={**_QWEN2_LAYER_NAMES, **_TIME_MIX_V6, **_BIASES},
        halved=frozenset(),
        by_heads=frozenset({"time_mix_decay.weight"}),
        model_names=_QWEN2_NAMES,
        optional=frozenset(_BIASES),
    ),
    "arwkv7": replace(
        _RWKV7,
        names={**_QWEN2_LAYER_NAMES, **_TIME_MIX_V7},
        model_names=_QWEN2_NAMES,
        optional=_GATE | frozenset(_GROUP_NORM),
    ),
}
_UNUSED_IN_LAYER_0: Final = frozenset(f"time_mix_v{number}.weight" for number in "012")


def locate_llama_cpp(metadata: Metadata, names: Iterable[str]) -> dict[str, StoredTensor]:
    """Return how a GGUF file stores RWKV's tensors, by BlinkDL's names. Raises ModelError if it has others."""
    found = metadata.get("general.architecture")
    if not isinstance(found, str) or found not in _ARCHITECTURES:
        allowed = ", ".join(_ARCHITECTURES)
        raise ModelError(f"general.architecture is {show(str(found))}; expected one of {allowed}")
    names = tuple(names)
    architecture = _ARCHITECTURES[found]
    num_layers = 1 + max((int(match[1]) for name in names if (match := _BLOCK.fullmatch(name))), default=-1)
    _check_names(architecture, names, num_layers)
    model_names = architecture.model_names
    stored = {model_names[name]: StoredTensor(name) for name in names if name in model_names}
    for name in names:
        if match := _BLOCK.fullmatch(name):
            has_gate = not _GATE & architecture.optional or f"blk.{match[1]}.time_mix_g1.weight" in names
            mixes = architecture.mixes if has_gate else architecture.mixes.removesuffix("g")
            stored |= _locate(architecture, metadata, found, int(match[1]), match[2], mixes)
    return stored


def list_llama_cpp_names(architecture: str, num_layers: int, present: Container[str]) -> Iterator[str]:
    """Yield the names of all tensors that llama.cpp's converter writes for a model with the tensors `present`.

    These have BlinkDL's names.
    """
    found = _ARCHITECTURES[architecture]
    yield from found.model_names
    for layer in range(num_layers):
        lacks = {name for name in found.optional if f"blocks.{layer}.{found.names[name]}" not in present}
        yield from (name for name in _names_of_layer(found, layer) if name.split(".", 2)[2] not in lacks)


def apply_metadata(metadata: Metadata, shape: ModelShape) -> ModelShape:
    """Return `shape` with the epsilons in a GGUF file's metadata. Raises ModelError if that does not fit."""
    prefix = metadata["general.architecture"]
    for key, size in _COMMON_SIZES.items():
        stated = metadata.get(f"{prefix}.{key}")
        if stated is not None and stated != shape.sizes[size]:
            raise _contradiction(f"{prefix}.{key}", stated, f"{shape.sizes[size]}, as the tensors have it")
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    if len(tokens) > shape.vocab_size:
        raise _contradiction("tokenizer.ggml.tokens", f"{len(tokens)} texts", f"at most {shape.vocab_size}")
    key = f"{prefix}.attention.layer_norm_{'' if shape.norm.centres else 'rms_'}epsilon"
    epsilon = metadata.get(key, shape.norm.epsilon)
    changed = shape.with_norm_epsilon(epsilon) if isinstance(epsilon, float) and 0 < epsilon < 1 else None
    if changed is None:
        raise _contradiction(key, epsilon, f"{shape.norm.epsilon}" if shape.norm.centres else "a number above 0")
    return changed


def _contradiction(key: str, stated: object, expected: str) -> ModelError:
    return ModelError(f"the metadata's {key} is {show(str(stated))}; expected {expected}")


def _check_names(architecture: _Architecture, names: tuple[str, ...], num_layers: int) -> None:
    if num_layers > len(names):
        raise ModelError(f"{len(names)} tensors can't make up {num_layers} layers; expected the tensors of all layers")
    in_layers = (name for layer in range(num_layers) for name in _names_of_layer(architecture, layer))
    known = {*architecture.model_names, *in_layers}
    optional = {f"blk.0.{name}" for name in _UNUSED_IN_LAYER_0}
    optional |= {f"blk.{layer}.{name}" for layer in range(num_layers) for name in architecture.optional}
    singles = {f"blk.{layer}.{name}" for layer in range(num_layers) for name in _single_mixes(architecture)}
    fused_apart = {f"blk.{name.split('.')[1]}.{_FUSED}" for name in singles & set(names)}
    check_none_missing(sorted(known - set(names) - optional - fused_apart), names, f"blk.{num_layers - 1}.")
    if unknown := sorted(set(names) - known - singles):
        raise ModelError(f"{count(unknown, 'tensor')} that no served RWKV version has: {show_all(unknown)}")


def _names_of_layer(architecture: _Architecture, layer: int) -> Iterator[str]:
    for name in (_FUSED, *architecture.names):
        yield f"blk.{layer}.{name}"


def _single_mixes(architecture: _Architecture) -> dict[str, str]:
    """Map llama.cpp's name of each token shift mix to BlinkDL's, for old files, which store each mix by itself."""
    return {f"time_mix_lerp_{kind}.weight": f"{architecture.mix}{kind}" for kind in architecture.mixes}


def _locate(
    architecture: _Architecture, metadata: Metadata, prefix: str, layer: int, name: str, mixes: str
) -> dict[str, StoredTensor]:
    """Map BlinkDL's names of the tensors that one tensor of a GGUF file holds to how they are stored in it.

    The stored tensor is called `name` within `layer`. It holds several tensors if it is the fused `mixes`, and none if
    the layer does not use it. `prefix` begins the metadata's keys.
    """
    stored, block = f"blk.{layer}.{name}", f"blocks.{layer}."
    if name == _FUSED:
        return {
            f"{block}{architecture.mix}{kind}": StoredTensor(stored, (StoredPart(index, len(mixes)),))
            for index, kind in enumerate(mixes)
        }
    if layer == 0 and name in _UNUSED_IN_LAYER_0:
        return {}
    steps: list[StoredStep] = [Swap()] if name in architecture.swapped else []
    if name in architecture.by_heads:
        steps.append(Rows(_positive(metadata, f"{prefix}.wkv.head_size", None)))
    if name in architecture.halved:
        factor = _scale(metadata, f"{prefix}.rescale_every_n_layers", layer)
        steps += [Scale(factor)] if factor != 1 else []
    blinkdl = {**architecture.names, **_single_mixes(architecture)}[name]
    return {block + blinkdl: StoredTensor(stored, tuple(steps))}


def _scale(metadata: Metadata, key: str, layer: int) -> float:
    """Return the power of 2 by which matrices of `layer` were divided. `key` gives the layers between halvings."""
    every = _positive(metadata, key, 0)
    halvings = layer // every if every else 0
    if halvings > _MOST_HALVINGS:
        raise _contradiction(key, every, f"a number with which the last layer is halved at most {_MOST_HALVINGS} times")
    return 2.0**halvings


def _positive(metadata: Metadata, key: str, default: int | None) -> int:
    """Return an integer of at least 1 from the metadata, or the `default`. Raises ModelError for anything else."""
    value = metadata.get(key, default)
    if type(value) is not int or (value < 1 and value != default):
        raise _contradiction(key, "missing" if value is None else value, "an integer of at least 1")
    return value
