"""A server of jobs, which a test can stop and start again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import openai
from aiohttp import web

from rnn_engine.interface import EngineLike
from rnn_engine.loading.settings import LoadSettings
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.app import STORE, make_app
from rnn_engine_server.core.settings import AuthSettings, Limits, ServerSettings
from rnn_engine_server.store.folder import Store
from tests.support.fake_engine import FakeEngine
from tests.support.official import openai_client

ANN, BOB = KEYS = (ApiKey.of("ann's key", "ann", Scope.MANAGE, 2.0), ApiKey.of("bob's key", "bob", Scope.MANAGE))


def greet_engine() -> FakeEngine:
    """Return an engine that answers with the length of the prompt."""
    return FakeEngine(reply=lambda request: f" Hi {len(request.prompt)}")


@dataclass
class JobServer:
    """A server over a fake engine, with a folder of jobs and a clock that a test sets.

    Each run opens the folder anew, and its client has ann's key.
    """

    folder: Path
    engine: FakeEngine = field(default_factory=greet_engine)
    keys: Sequence[ApiKey] = KEYS
    limits: Limits = field(default_factory=Limits)
    loading: LoadSettings | None = None
    served: EngineLike | None = None  # what has the engine, a fleet say; None = the engine itself
    now: float = 1_000_000.0  # s
    app: web.Application = field(init=False)  # of the last run

    @property
    def app_store(self) -> Store:
        """The store of the last run."""
        return self.app[STORE]

    def run(self) -> AbstractAsyncContextManager[openai.AsyncOpenAI]:
        """Serve until the context ends, which yields OpenAI's client."""
        return openai_client(self._open(), "ann's key")

    def _open(self) -> web.Application:
        settings = ServerSettings(auth=AuthSettings(tuple(self.keys)), limits=self.limits, loading=self.loading)
        store = Store(self.folder, self.limits, clock=lambda: self.now)
        self.app = make_app(self.served or self.engine, settings, store=store)
        return self.app
