"""An engine for one command: its loading, and an event loop that runs whenever the command waits for a result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from rnn_engine.bounds import MAX_QUEUED
from rnn_engine.demo import model_path, pirate_state_path
from rnn_engine.engine import Engine
from rnn_engine.forward import Progress
from rnn_engine.hub import model_name
from rnn_engine.interface import EngineLike
from rnn_engine.llm.progress import progress_bar
from rnn_engine.loading.settings import LoadSettings, StateFile, StateSettings
from rnn_engine.requests import Finished, GenerateRequest, Started, TextDelta
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.frozen import FrozenState

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The model that a command loads, and the settings with which its engine is loaded."""

    model: Path
    loading: LoadSettings
    slots: int
    cache: CacheConfig | None = None
    states: StateSettings = field(default_factory=StateSettings)
    queue_seconds: float | None = None
    max_queued: int = MAX_QUEUED
    grammar_seconds: float = 2.0
    name: str | None = None  # None = the file's name without its ending


def with_demo_state(model: Path, states: StateSettings) -> StateSettings:
    """Return `states` with the demo model's own state, not as the default, if the model is the demo."""
    demo = StateFile(pirate_state_path(), "pirate")
    if model != model_path() or any((file.name or file.path.stem) == demo.name for file in states.files):
        return states
    return replace(states, files=[*states.files, demo])


async def load_engine(choice: EngineChoice, progress: Progress = lambda *_: None) -> Engine:
    """Load the engine of `choice`, with a progress bar. `progress` is called on any thread. May be cancelled."""
    cancelled = threading.Event()
    with progress_bar(f"loading {choice.name or model_name(choice.model)}") as show:

        def report(what: str, done: int, total: int) -> None:
            if cancelled.is_set():
                raise RuntimeError("loading was cancelled")
            show(what, done, total)
            progress(what, done, total)

        try:
            return await Engine.load(
                choice.model,
                choice.loading,
                name=choice.name,
                num_slots=choice.slots,
                queue_seconds=choice.queue_seconds,
                max_queued=choice.max_queued,
                grammar_seconds=choice.grammar_seconds,
                cache=choice.cache,
                states=choice.states,
                progress=report,
            )
        except asyncio.CancelledError:
            cancelled.set()
            raise


@dataclass(frozen=True, slots=True)
class Session:
    """An engine and its event loop. On Ctrl-C, `run` cancels what it runs and raises KeyboardInterrupt."""

    engine: EngineLike
    loop: asyncio.Runner

    @property
    def initial(self) -> FrozenState | None:
        """The named state from which texts start by default; None if they start from the model's initial state."""
        default = self.run(self.engine.states.default())
        return None if default is None else default.frozen

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work)

    def generate(
        self,
        request: GenerateRequest,
        on_delta: Callable[[TextDelta], None],
        on_start: Callable[[Started], None] = lambda _: None,
    ) -> Finished:
        """Run a request, call `on_start` after its prompt and `on_delta` with each text; return the last event."""

        async def run() -> Finished:
            async with aclosing(self.engine.generate(request)) as events:
                async for event in events:
                    match event:
                        case Started():
                            on_start(event)
                        case TextDelta():
                            on_delta(event)
                        case Finished():
                            return event
            raise RuntimeError("the engine ended a request without a final event")

        return self.run(run())


@contextmanager
def engine_session(choice: EngineChoice) -> Iterator[Session]:
    """Return a context manager that loads the engine described by `choice`, yields a session with it, and closes it."""
    with asyncio.Runner() as loop:
        engine = loop.run(load_engine(choice))
        try:
            yield Session(engine, loop)
        finally:
            loop.run(engine.close())
