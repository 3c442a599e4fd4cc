"""RWKV-7's tensor names in flash-linear-attention, which Hugging Face folders and PEFT's adapters have.

Its linear layers hold [out, in], so the two matrices of each low-rank adapter are transposed against BlinkDL's.
"""

from __future__ import annotations

import re
from typing import Final

_TOP: Final = {
    "emb.weight": "model.embeddings.weight",
    "head.weight": "lm_head.weight",
    "ln_out.weight": "model.norm.weight",
    "ln_out.bias": "model.norm.bias",
}
_PARTS: Final = {"ln0": "pre_norm", "ln1": "attn_norm", "ln2": "ffn_norm", "att": "attn", "ffn": "ffn"}
_TIME_MIX: Final = {
    "receptance": "r_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "o_proj",
    "ln_x": "g_norm",
}
_ADAPTER: Final = {"0": "2.bias", "1": "0.weight", "2": "2.weight"}
_BLOCK: Final = re.compile(r"blocks\.([0-9]+)\.([a-z0-9]+)\.(.*)")
_FLA_BLOCK: Final = re.compile(r"model\.layers\.([0-9]+)\.([a-z_]+)\.(.*)")
_FLA_ADAPTER: Final = re.compile(r"([wavg])_lora\.lora\.(2\.bias|0\.weight|2\.weight)")
_PART_NAMES: Final = {fla: blinkdl for blinkdl, fla in _PARTS.items()}
_TIME_MIX_MODULES: Final = {fla: blinkdl for blinkdl, fla in _TIME_MIX.items()}
_ADAPTER_NUMBERS: Final = {fla: number for number, fla in _ADAPTER.items()}
_ADAPTER_NAME: Final = re.compile("[wavg][012]")


def fla_name(name: str) -> str:
    """Return what flash-linear-attention calls the tensor of an RWKV-7 that BlinkDL calls `name`."""
    match = _BLOCK.fullmatch(name)
    if match is None:
        return _TOP.get(name, name)
    layer, part, rest = match.groups()
    if part == "att":
        rest = _time_mix_name(rest)
    return f"model.layers.{layer}.{_PARTS.get(part, part)}.{rest}"


def blinkdl_name(name: str) -> str:
    """Return what BlinkDL calls the tensor of an RWKV-7 that flash-linear-attention calls `name`; see `fla_name`."""
    match = _FLA_BLOCK.fullmatch(name)
    if match is None:
        return {fla: blinkdl for blinkdl, fla in _TOP.items()}.get(name, name)
    layer, part, rest = match.groups()
    if part == "attn":
        module, dot, parameter = rest.partition(".")
        rest = f"{_TIME_MIX_MODULES.get(module, module)}{dot}{parameter}"
        if adapter := _FLA_ADAPTER.fullmatch(rest):
            rest = f"{adapter[1]}{_ADAPTER_NUMBERS[adapter[2]]}"
    return f"blocks.{layer}.{_PART_NAMES.get(part, part)}.{rest}"


def is_transposed(name: str) -> bool:
    """Whether flash-linear-attention has the last two dimensions of BlinkDL's tensor `name` swapped."""
    return re.fullmatch(r"blocks\.[0-9]+\.att\.[wavg][12]", name) is not None


def _time_mix_name(rest: str) -> str:
    if _ADAPTER_NAME.fullmatch(rest):
        return f"{rest[0]}_lora.lora.{_ADAPTER[rest[1]]}"
    module, dot, parameter = rest.partition(".")
    return f"{_TIME_MIX.get(module, module)}{dot}{parameter}"
