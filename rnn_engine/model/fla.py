"""RWKV-6 and RWKV-7 under the names that they have in flash-linear-attention.

RWKV-6 has the five mixes that depend on the token in the order r, w, k, v, g, where BlinkDL has w, k, v, r, g; the
vectors of these mixes are one tensor, and the second halves of their adapters lie side by side in one matrix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from rnn_engine.model.fla_names import blinkdl_name, is_transposed
from rnn_engine.model.stored import Part, Reorder, Split, Step, StoredTensor, Swap

_MARK: Final = re.compile(r"model\.layers\.[0-9]+\.attn\.(r_k|k_k|k_a|x_x|x_bias|bonus)")
_MARK_V6: Final = re.compile(r"model\.layers\.[0-9]+\.attn\.(x_bias|bonus)")
_BLOCK: Final = re.compile(r"model\.layers\.([0-9]+)\.(.*)")
_FUSED_V7: Final = "attn.x_x"  # the six mixes in one tensor, as the first models had them
_MIXES_V7: Final = "rwkvag"
_FUSED_V6: Final = "attn.x_bias"
_MIXES_V6: Final = "rwkvg"
_TO_BLINKDL: Final = Reorder(tuple(_MIXES_V6.index(kind) for kind in "wkvrg"))

_LAYER_V6: Final[dict[str, tuple[str, tuple[Step, ...]]]] = {
    "attn.x_proj.0.mu": ("att.time_maa_x", ()),
    "attn.x_proj.0.linear.weight": ("att.time_maa_w1", (_TO_BLINKDL, Swap())),  # [5 * R, D]
    "attn.x_proj.2.weight": ("att.time_maa_w2", (Swap(), _TO_BLINKDL, Split(len(_MIXES_V6)))),  # [D, 5 * R]
    "attn.w_proj.linear.lora.0.weight": ("att.time_decay_w1", (Swap(),)),
    "attn.w_proj.linear.lora.2.weight": ("att.time_decay_w2", (Swap(),)),
    "attn.w_proj.linear.lora.2.bias": ("att.time_decay", ()),
    "attn.bonus": ("att.time_faaaa", ()),
    "attn.r_proj.linear.weight": ("att.receptance.weight", ()),
    "attn.k_proj.linear.weight": ("att.key.weight", ()),
    "attn.v_proj.linear.weight": ("att.value.weight", ()),
    "attn.g_proj.linear.weight": ("att.gate.weight", ()),
    "ffn.key.linear.weight": ("ffn.key.weight", ()),
    "ffn.key.mu": ("ffn.time_maa_k", ()),
    "ffn.receptance.linear.weight": ("ffn.receptance.weight", ()),
    "ffn.receptance.mu": ("ffn.time_maa_r", ()),
}
"""The tensors of a layer that RWKV-7 does not have -> BlinkDL's name in the layer, and how the tensor is made."""


def has_fla_names(names: Iterable[str]) -> bool:
    return any(_MARK.fullmatch(name) for name in names)


def locate_fla(names: Iterable[str]) -> Iterator[tuple[str, StoredTensor]]:
    """Yield where each tensor of the model is, with BlinkDL's name; one that is unknown keeps its own."""
    names = tuple(names)
    locate = _locate_v6 if any(_MARK_V6.fullmatch(name) for name in names) else _locate_v7
    for name in names:
        yield from locate(name)


def _locate_v7(name: str) -> Iterator[tuple[str, StoredTensor]]:
    block = _BLOCK.fullmatch(name)
    if block and block[2] == _FUSED_V7:
        for index, kind in enumerate(_MIXES_V7):
            yield f"blocks.{block[1]}.att.x_{kind}", StoredTensor(name, (Part(index, len(_MIXES_V7)),))
        return
    own = blinkdl_name(name)
    yield own, StoredTensor(name, (Swap(),) if is_transposed(own) else ())


def _locate_v6(name: str) -> Iterator[tuple[str, StoredTensor]]:
    block = _BLOCK.fullmatch(name)
    if block and block[2] == _FUSED_V6:
        for index, kind in enumerate(_MIXES_V6):
            yield f"blocks.{block[1]}.att.time_maa_{kind}", StoredTensor(name, (Part(index, len(_MIXES_V6)),))
    elif block and block[2] in _LAYER_V6:
        own, steps = _LAYER_V6[block[2]]
        yield f"blocks.{block[1]}.{own}", StoredTensor(name, steps)
    else:
        yield blinkdl_name(name), StoredTensor(name)
