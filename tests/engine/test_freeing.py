"""The memory of a closed engine is free at once, without a garbage collection."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import ReferenceType, ref

import pytest

from rnn_engine import engine as engine_module
from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from rnn_engine.forward import GpuRunner
from rnn_engine.grammar import Grammar
from rnn_engine.loading.parts import EngineParts, open_parts
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.requests import GenerateRequest
from rnn_engine_states.cache.config import CacheConfig, DiskConfig


class Keeping(ThreadPoolExecutor):
    """An executor that keeps the arguments of its calls, as a thread does for a moment after a call has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[object] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401
        self._kept.append((fn, args, kwargs))
        return super().submit(fn, *args, **kwargs)


@pytest.fixture
def parts_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ReferenceType[Any]]]:
    """Yield weak references to the parts of the loaded engine, by name. Garbage collection is off during the test."""
    references: dict[str, ReferenceType[Any]] = {}

    def open_watched(*args: Any, **kwargs: Any) -> EngineParts:  # noqa: ANN401
        parts = open_parts(*args, **kwargs)
        watched = {
            "runner": parts.runner,
            "tokenizer": parts.tokenizer,
            "states": parts.own_states,
            "cache": parts.cache,
        }
        if isinstance(parts.runner, GpuRunner):
            watched["forward pass"] = parts.runner._forward
        assert parts.cache is not None
        watched |= {f"{tier.name} tier": tier for tier in parts.cache.tiers}
        references.update({name: ref(part) for name, part in watched.items()})
        return parts

    monkeypatch.setattr(engine_module, "open_parts", open_watched)
    gc.collect()
    gc.disable()
    yield references
    gc.enable()


@pytest.mark.parametrize("device", ["cpu", "auto"])
@pytest.mark.parametrize(
    "grammar", [None, Grammar("json_object"), Grammar("kbnf", 'start ::= #"[a-z]+" ;')], ids=["free", "json", "kbnf"]
)
async def test_a_closed_engine_is_freed_without_a_collection(
    device: str, grammar: Grammar | None, tmp_path: Path, parts_of: dict[str, ReferenceType[Any]]
) -> None:
    cache = CacheConfig(disk=DiskConfig(tmp_path))
    engine = await Engine.load(model_path(), LoadSettings(device), num_slots=2, cache=cache)
    request = GenerateRequest(
        engine.tokenize("User: Hello\n\nAssistant:"), max_tokens=8, stop=(b"\n",), grammar=grammar
    )
    assert [event async for event in engine.generate(request)]
    parts_of |= {"engine": ref(engine), "scheduler": ref(engine._scheduler), "worker": ref(engine._worker)}
    asyncio.get_running_loop().set_default_executor(Keeping())
    await engine.close()
    del engine
    alive = [name for name, reference in parts_of.items() if reference() is not None]
    assert alive == []
