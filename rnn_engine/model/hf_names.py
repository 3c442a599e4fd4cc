"""RWKV-4 to RWKV-6 under the names that they have in transformers, and in folders that are made for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from rnn_engine.model.stored import StoredTensor

_MARK: Final = re.compile(r"rwkv\.blocks\.[0-9]+\.attention\..*")
_PREFIX: Final = "rwkv."
_PARTS: Final = {"pre_ln": "ln0", "attention": "att", "feed_forward": "ffn"}
_MIX: Final = re.compile(r"(blocks\.[0-9]+\.(?:att|ffn)\.time_mix_)(key|value|receptance|gate)")
_BLOCK: Final = re.compile(r"(blocks\.[0-9]+)\.([a-z0-9_]+)\.(.*)")


def has_hf_names(names: Iterable[str]) -> bool:
    return any(_MARK.fullmatch(name) for name in names)


def locate_hf(names: Iterable[str]) -> Iterable[tuple[str, StoredTensor]]:
    """Yield where each tensor of the model is, with BlinkDL's name; one that is unknown keeps its own."""
    for name in names:
        yield _blinkdl_name(name), StoredTensor(name)


def _blinkdl_name(name: str) -> str:
    if not name.startswith(_PREFIX):
        return name
    plain = name.removeprefix(_PREFIX)
    if plain == "embeddings.weight":
        return "emb.weight"
    if block := _BLOCK.fullmatch(plain):
        plain = f"{block[1]}.{_PARTS.get(block[2], block[2])}.{block[3]}"
    mix = _MIX.fullmatch(plain)
    return f"{mix[1]}{mix[2][0]}" if mix else plain
