"""The tensors of rwkv.cpp's .bin files: BlinkDL's names, some of the tensors transformed by its converter.

The adapters are transposed. RWKV-7 has its six mixes in one tensor. RWKV-5 has the decay as exp(-exp(w)), and its bonus
as exp(u) where it is called time_first; RWKV-4 has the decay as -exp(w). These numbers are turned back here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.model.stored import Compute, Flat, Part, Split, Step, StoredTensor, Swap
from rnn_engine.types import ModelShape

_MIXES: Final = "rwkvag"
_FUSED: Final = re.compile(r"(blocks\.[0-9]+\.att\.x_)rwkvag")
_ADAPTER: Final = re.compile(r"blocks\.[0-9]+\.att\.([wavg][12]|time_maa_w[12]|time_decay_w[12])")
_DECAY: Final = re.compile(r"blocks\.[0-9]+\.att\.time_decay")
_FIRST: Final = re.compile(r"blocks\.[0-9]+\.att\.time_first")
_LEAST: Final = 1e-30
_LEAST_LOG: Final = 2.0**-26  # exp(-x) is 1 in f32 for what is less
_MOST_LOG: Final = 104.0  # exp(-x) is 0 in f32 for what is more


def locate_rwkv_cpp(names: Iterable[str]) -> dict[str, StoredTensor]:
    """Return where a file keeps each tensor of the model, by BlinkDL's name; one that is unknown keeps its own."""
    names = tuple(names)
    stored = {}
    for name in names:
        if fused := _FUSED.fullmatch(name):
            for index, kind in enumerate(_MIXES):
                stored[f"{fused[1]}{kind}"] = StoredTensor(name, (Split(len(_MIXES)), Part(index, len(_MIXES))))
        else:
            stored[name] = StoredTensor(name, _steps(name, names))
    return stored


def check_sizes(sizes: Mapping[str, int], shape: ModelShape) -> None:
    """Raise ModelError where the file's header contradicts its tensors."""
    for size, stated in sizes.items():
        if stated != shape.sizes[size]:
            raise ModelError(f"the header's {size} is {stated}; expected {shape.sizes[size]}, as the tensors have it")


def _steps(name: str, names: tuple[str, ...]) -> tuple[Step, ...]:
    is_v6 = "blocks.0.att.time_maa_x" in names
    has_heads = "blocks.0.att.ln_x.weight" in names
    if _ADAPTER.fullmatch(name):
        return (Swap(),)
    if _DECAY.fullmatch(name):
        if is_v6:
            return (Flat(),)
        return (Compute(_log_log if has_heads else _log_of_negative),)
    if _FIRST.fullmatch(name) and has_heads:
        return (Compute(_log),)
    return ()


def _log_log(decay: NDArray[Any]) -> NDArray[Any]:
    """Return w of exp(-exp(w)), finite where f32 has rounded that to 0 or 1."""
    with np.errstate(all="ignore"):  # of a damaged file
        return _log(np.clip(-np.log(decay), _LEAST_LOG, _MOST_LOG))


def _log_of_negative(decay: NDArray[Any]) -> NDArray[Any]:
    """Return w of -exp(w)."""
    return _log(-decay)


def _log(values: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(all="ignore"):
        logs: NDArray[Any] = np.log(np.maximum(values, _LEAST)).astype(values.dtype)
    return logs
