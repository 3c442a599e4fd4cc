"""Serve RWKV recurrent language models on any GPU that WebGPU reaches.

The names below are imported when they are first used, so that `import rnn_engine` is quick.
"""

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

_MODULES = {
    "AsyncCollection": "rnn_engine.llm.collection",
    "AsyncLLM": "rnn_engine.llm.asynchronous",
    "ChatMessage": "rnn_engine.chat_template",
    "Collection": "rnn_engine.llm.collection",
    "Completion": "rnn_engine.llm.results",
    "Document": "rnn_engine_states.documents",
    "EmbeddingSettings": "rnn_engine.operations.embedding",
    "Engine": "rnn_engine.engine",
    "GenerationInterrupted": "rnn_engine.llm.results",
    "Hit": "rnn_engine.operations.collections",
    "LLM": "rnn_engine.llm.llm",
    "LoadSettings": "rnn_engine.loading.settings",
    "Model": "rnn_engine.llm.model",
    "RankedChoice": "rnn_engine.llm.results",
    "RankedDocument": "rnn_engine.llm.results",
    "RnnEngineError": "rnn_engine.errors",
    "SamplingParams": "rnn_engine.llm.results",
    "Search": "rnn_engine.operations.collections",
    "State": "rnn_engine.llm.state",
    "Tool": "rnn_engine.chat_template",
    "ToolCall": "rnn_engine.chat_template",
    "Traced": "rnn_engine.llm.model",
    "Tuner": "rnn_engine.llm.tuner",
    "TunerSettings": "rnn_engine.training.tuner",
}

__all__ = (
    "LLM",
    "AsyncCollection",
    "AsyncLLM",
    "ChatMessage",
    "Collection",
    "Completion",
    "Document",
    "EmbeddingSettings",
    "Engine",
    "GenerationInterrupted",
    "Hit",
    "LoadSettings",
    "Model",
    "RankedChoice",
    "RankedDocument",
    "RnnEngineError",
    "SamplingParams",
    "Search",
    "State",
    "Tool",
    "ToolCall",
    "Traced",
    "Tuner",
    "TunerSettings",
)


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
