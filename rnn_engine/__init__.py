"""Serve RWKV language models on any GPU that WebGPU reaches. The names below are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnn_engine.chat_template import ChatMessage as ChatMessage
    from rnn_engine.chat_template import Tool as Tool
    from rnn_engine.chat_template import ToolCall as ToolCall
    from rnn_engine.engine import Engine as Engine
    from rnn_engine.errors import RnnEngineError as RnnEngineError
    from rnn_engine.llm.asynchronous import AsyncLLM as AsyncLLM
    from rnn_engine.llm.collection import AsyncCollection as AsyncCollection
    from rnn_engine.llm.collection import Collection as Collection
    from rnn_engine.llm.llm import LLM as LLM
    from rnn_engine.llm.model import Model as Model
    from rnn_engine.llm.model import Traced as Traced
    from rnn_engine.llm.results import Completion as Completion
    from rnn_engine.llm.results import GenerationInterrupted as GenerationInterrupted
    from rnn_engine.llm.results import RankedChoice as RankedChoice
    from rnn_engine.llm.results import RankedDocument as RankedDocument
    from rnn_engine.llm.results import SamplingParams as SamplingParams
    from rnn_engine.llm.state import State as State
    from rnn_engine.llm.tuner import Tuner as Tuner
    from rnn_engine.loading.settings import LoadSettings as LoadSettings
    from rnn_engine.operations.collections import Hit as Hit
    from rnn_engine.operations.collections import Search as Search
    from rnn_engine.operations.embedding import EmbeddingSettings as EmbeddingSettings
    from rnn_engine.training.tuner import TunerSettings as TunerSettings
    from rnn_engine_states.documents import Document as Document

_NAMES = {
    "rnn_engine.chat_template": ("ChatMessage", "Tool", "ToolCall"),
    "rnn_engine.engine": ("Engine",),
    "rnn_engine.errors": ("RnnEngineError",),
    "rnn_engine.llm.asynchronous": ("AsyncLLM",),
    "rnn_engine.llm.collection": ("AsyncCollection", "Collection"),
    "rnn_engine.llm.llm": ("LLM",),
    "rnn_engine.llm.model": ("Model", "Traced"),
    "rnn_engine.llm.results": (
        "Completion",
        "GenerationInterrupted",
        "RankedChoice",
        "RankedDocument",
        "SamplingParams",
    ),
    "rnn_engine.llm.state": ("State",),
    "rnn_engine.llm.tuner": ("Tuner",),
    "rnn_engine.loading.settings": ("LoadSettings",),
    "rnn_engine.operations.collections": ("Hit", "Search"),
    "rnn_engine.operations.embedding": ("EmbeddingSettings",),
    "rnn_engine.training.tuner": ("TunerSettings",),
    "rnn_engine_states.documents": ("Document",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = tuple(_MODULES)


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
