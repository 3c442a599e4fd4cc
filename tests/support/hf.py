"""Hugging Face folders as flash-linear-attention's and transformers' converters write them, from models in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from rnn_engine.model.huggingface import fla_name, is_transposed
from rnn_engine.versions.v6.layout import ShapeV6
from tests.support.models import TensorModel, tiny_shape
from tests.support.pth import save_pth

Tensors = dict[str, NDArray[Any]]
Library = Literal["fla", "transformers", "qwen2"]

_LONG_MIXES = {"k": "key", "v": "value", "r": "receptance", "g": "gate"}


def hf_tensors(model: TensorModel, library: Library) -> Tensors:
    """Return a model's tensors under the names and in the orientation of `library`."""
    if library == "transformers":
        return {_transformers_name(name): values for name, values in model.tensors.items()}
    if library == "qwen2":
        is_v6 = isinstance(model.shape, ShapeV6)
        return {_qwen2_name(name, is_v6=is_v6): _qwen2_form(name, values) for name, values in model.tensors.items()}
    return _fla_v6(model) if isinstance(model.shape, ShapeV6) else _fla_v7(model)


def hf_config(model: TensorModel, library: Library) -> dict[str, Any]:
    """Return the config.json that the library writes for a model."""
    shape, kind = model.shape, f"rwkv{model.shape.version[1]}"
    common = {
        "model_type": "rwkv" if kind == "rwkv4" else kind,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.num_layers,
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": False,
    }
    if library == "qwen2":
        return common | _qwen2_config(model)
    if library == "transformers":
        heads = {} if kind == "rwkv4" else {"head_size": shape.sizes["head_size"], "head_size_divisor": 8}
        return common | heads | {"layer_norm_epsilon": 1e-5, "rescale_every": 6, "attention_hidden_size": shape.width}
    fla = {"norm_eps": 1e-5, "norm_first": True, "norm_bias": True, "hidden_act": "sqrelu", "attn": None}
    sizes = {"intermediate_size": shape.sizes["ffn_width"], "num_heads": shape.sizes["num_heads"]}
    more = {"expand_k": 1, "expand_v": 1.0} if kind == "rwkv6" else {"head_dim": shape.sizes["head_size"]}
    return common | fla | sizes | more


def save_folder(
    folder: Path,
    tensors: Mapping[str, NDArray[Any]],
    config: Mapping[str, Any],
    *,
    num_shards: int = 1,
    torch: bool = False,
) -> Path:
    """Write a folder with safetensors, or with torch's files."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    name = "pytorch_model.bin" if torch else "model.safetensors"
    if num_shards == 1:
        _save(folder / name, tensors, torch=torch)
        return folder
    stem, dot, ending = name.rpartition(".")
    names = [f"{stem}-{number:05}-of-{num_shards:05}{dot}{ending}" for number in range(1, num_shards + 1)]
    places = {tensor: names[number % num_shards] for number, tensor in enumerate(tensors)}
    for shard in names:
        _save(folder / shard, {name: tensors[name] for name in tensors if places[name] == shard}, torch=torch)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / f"{name}.index.json").write_text(json.dumps(index))
    return folder


def save_hf(model: TensorModel, folder: Path, library: Library, num_shards: int = 1, **changes: object) -> Path:
    """Write a model's folder. `changes` replace fields of its config; None drops a field."""
    config = {key: value for key, value in {**hf_config(model, library), **changes}.items() if value is not None}
    return save_folder(folder, hf_tensors(model, library), config, num_shards=num_shards)


def _save(path: Path, tensors: Mapping[str, NDArray[Any]], *, torch: bool) -> None:
    contiguous = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
    if torch:
        save_pth(TensorModel(tiny_shape(), contiguous), path, "f32")
    else:
        save_file(contiguous, path, {"format": "pt"})


_QWEN2_NAMES = (  # BlinkDL's name -> Qwen2's, the first that fits
    (r"emb\.weight", "model.embed_tokens.weight"),
    (r"ln_out\.weight", "model.norm.weight"),
    (r"head\.weight", "lm_head.weight"),
    (r"blocks\.(\d+)\.ln1\.weight", r"model.layers.\1.input_layernorm.weight"),
    (r"blocks\.(\d+)\.ln2\.weight", r"model.layers.\1.post_attention_layernorm.weight"),
    (r"blocks\.(\d+)\.ffn\.(\w+)\.weight", r"model.layers.\1.mlp.\2_proj.weight"),
)
_QWEN2_MODULES = {"receptance": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}


def _qwen2_name(name: str, *, is_v6: bool) -> str:
    for pattern, replacement in _QWEN2_NAMES:
        if re.fullmatch(pattern, name):
            return re.sub(pattern, replacement, name)
    _, layer, _, rest = name.split(".", 3)
    if not is_v6:
        return f"model.layers.{layer}.self_attn.time_mixer.{rest}"
    module, dot, parameter = rest.partition(".")
    return f"model.layers.{layer}.self_attn.{_QWEN2_MODULES.get(module, module)}{dot}{parameter}"


def _qwen2_config(model: TensorModel) -> dict[str, Any]:
    shape = model.shape
    common = {"intermediate_size": shape.sizes["ffn_width"], "hidden_act": "silu", "rms_norm_eps": 1e-6}
    if not isinstance(shape, ShapeV6):
        sizes = {"head_size": shape.sizes["head_size"], "num_wkv_heads": shape.sizes["num_heads"]}
        return {**common, **sizes, "model_type": "rwkv_hybrid", "wkv_version": 7, "head_size_divisor": 8}
    heads = {"num_attention_heads": shape.num_heads, "num_key_value_heads": shape.num_heads // shape.heads_a_kv_head}
    return {**common, **heads, "model_type": "rwkv6qwen2", "use_rope": False, "lora_rank_decay": shape.decay_rank}


def _qwen2_form(name: str, values: NDArray[Any]) -> NDArray[Any]:
    if name.endswith((".time_maa_w1", ".time_maa_w2")):  # the order r, k, v, w, g in place of w, k, v, r, g
        parts = np.split(values, 5, axis=-1 if name.endswith("w1") else 0)
        return np.concatenate([parts[place] for place in (3, 1, 2, 0, 4)], axis=-1 if name.endswith("w1") else 0)
    return values.reshape(1, 1, -1) if re.search(r"time_decay$|time_maa_\w$|\.[wav]0$|x_\w$", name) else values


def _transformers_name(name: str) -> str:
    name = name.replace("emb.", "embeddings.").replace(".ln0.", ".pre_ln.")
    name = name.replace(".att.", ".attention.").replace(".ffn.", ".feed_forward.")
    name = re.sub(r"time_mix_(\w)$", lambda match: f"time_mix_{_LONG_MIXES[match[1]]}", name)
    return name if name == "head.weight" else f"rwkv.{name}"


def _fla_v7(model: TensorModel) -> Tensors:
    """Return the tensors as convert_from_rwkv7.py does. It leaves out layer 0's value residual."""
    return {
        fla_name(name): _fla_mix(name, values.T if is_transposed(name) else values)
        for name, values in model.tensors.items()
        if not re.fullmatch(r"blocks\.0\.att\.v[012]", name)
    }


def _fla_mix(name: str, values: NDArray[Any]) -> NDArray[Any]:
    return values.reshape(1, 1, -1) if ".att.x_" in name else values


def _fla_v6(model: TensorModel) -> Tensors:
    """Return the tensors as convert_from_rwkv6.py does, step by step."""
    tensors = {
        "model.embeddings.weight": model.tensor("emb.weight"),
        "lm_head.weight": model.tensor("head.weight"),
        **{f"model.norm.{part}": model.tensor(f"ln_out.{part}") for part in ("weight", "bias")},
        **{f"model.layers.0.pre_norm.{part}": model.tensor(f"blocks.0.ln0.{part}") for part in ("weight", "bias")},
    }
    for layer in range(model.shape.num_layers):
        tensors |= {f"model.layers.{layer}.{name}": values for name, values in _fla_v6_layer(model, layer).items()}
    return tensors


def _fla_v6_layer(model: TensorModel, layer: int) -> Tensors:
    def get(name: str) -> NDArray[Any]:
        return model.tensor(f"blocks.{layer}.{name}")

    width = model.shape.width
    ww, wk, wv, wr, wg = np.moveaxis(get("att.time_maa_w1").reshape(width, 5, -1), 1, 0)  # [D, R] each
    uw, uk, uv, ur, ug = get("att.time_maa_w2")  # [R, D] each
    tensors = {
        "attn.x_proj.0.mu": get("att.time_maa_x"),
        "attn.x_proj.0.linear.weight": np.concatenate((wr, ww, wk, wv, wg), -1).T,
        "attn.x_proj.2.weight": np.concatenate((ur, uw, uk, uv, ug), 0).T,
        "attn.x_bias": np.stack([get(f"att.time_maa_{kind}") for kind in "rwkvg"]),
        "attn.w_proj.linear.lora.0.weight": get("att.time_decay_w1").T,
        "attn.w_proj.linear.lora.2.weight": get("att.time_decay_w2").T,
        "attn.w_proj.linear.lora.2.bias": get("att.time_decay"),
        "attn.bonus": get("att.time_faaaa"),
        "attn.o_proj.weight": get("att.output.weight"),
        "ffn.key.linear.weight": get("ffn.key.weight"),
        "ffn.key.mu": get("ffn.time_maa_k"),
        "ffn.receptance.linear.weight": get("ffn.receptance.weight"),
        "ffn.receptance.mu": get("ffn.time_maa_r"),
        "ffn.value.weight": get("ffn.value.weight"),
    }
    for short, name in (("r", "receptance"), ("k", "key"), ("v", "value"), ("g", "gate")):
        tensors[f"attn.{short}_proj.linear.weight"] = get(f"att.{name}.weight")
    for fla, own in (("attn_norm", "ln1"), ("ffn_norm", "ln2"), ("attn.g_norm", "att.ln_x")):
        tensors |= {f"{fla}.{part}": get(f"{own}.{part}") for part in ("weight", "bias")}
    return tensors
