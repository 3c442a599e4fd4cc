"""Serve RWKV recurrent language models on any GPU that WebGPU reaches.

The names below are imported when they are first used, so that `import rnn_engine` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnn_engine.llm.state import State as State

_MODULES = {"State": "rnn_engine.llm.state"}

__all__ = ["State"]


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
