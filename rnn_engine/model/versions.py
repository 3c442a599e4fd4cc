"""Tells which RWKV version a set of tensor names belongs to, by tensors that only that version has.

A version that is served has a layout module; a new one adds that module and a line in `_SERVED`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rnn_engine.errors import ModelError
from rnn_engine.model import layout_v7
from rnn_engine.model.layout import Layout
from rnn_engine.model.listing import show_all


@dataclass(frozen=True, slots=True)
class _Marker:
    """A version, what messages call it, and a pattern that tensor names of it match and those of no later one do."""

    version: str
    title: str
    pattern: re.Pattern[str]


# Both spellings of a name stand here where the two file conventions differ. The first marker that is found decides.
_MARKERS: Final = (
    _Marker(
        "v7-hf",
        "RWKV-7 under Hugging Face's tensor names",
        re.compile(r"model\.layers\.\d+\.attn\.(r_k|k_k|k_a|x_\w+)"),
    ),
    _Marker("v4-hf", "RWKV under Hugging Face's tensor names", re.compile(r"rwkv\.blocks\.\d+\.attention\..*")),
    _Marker("v7-deepembed", "RWKV-7 with DeepEmbed", re.compile(r"blocks\.\d+\.ffn\.s_emb\.weight")),
    _Marker("v7", "RWKV-7", re.compile(r"blocks\.\d+\.att\.(r_k|k_k|k_a|[wa][012]|g[12]|x_[rwkvag])")),
    _Marker("v6", "RWKV-6", re.compile(r"blocks\.\d+\.att\.(time_maa_\w+|time_mix_(x|w|w1|w2)|time_decay_w[12])")),
    _Marker("v5", "RWKV-5", re.compile(r"blocks\.\d+\.att\.(ln_x\..*|gate\.weight|time_faaaa)")),
    _Marker("v4", "RWKV-4", re.compile(r"blocks\.\d+\.att\.(time_decay|time_first|time_mix_[kvr])")),
)

_SERVED: Final[Mapping[str, Layout]] = {"v7": layout_v7.LAYOUT}


def find_layout(names: Iterable[str]) -> Layout:
    """The layout of the version whose tensors these are. Raises ModelError for a version that is not served."""
    names = tuple(names)
    for marker in _MARKERS:
        if any(marker.pattern.fullmatch(name) for name in names):
            if marker.version in _SERVED:
                return _SERVED[marker.version]
            raise ModelError(f"this is {marker.title}, which is not served yet; expected RWKV-7 under BlinkDL's names")
    found = show_all(names) or "none"
    raise ModelError(f"no RWKV version has these tensors; expected names such as blocks.0.att.r_k, found {found}")
