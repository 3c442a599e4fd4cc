"""Batches on an engine in this process: those of the server, without connections."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from rnn_engine.cli.session import EngineChoice, Session, engine_session, with_demo_state
from rnn_engine.errors import InvalidRequestError
from rnn_engine.files import output_file
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine_server.auth.keys import ANYONE
from rnn_engine_server.core.app import BATCHES, RUNNER, make_app, serving
from rnn_engine_server.core.settings import Limits, ServerSettings
from rnn_engine_server.jobs.runner import BatchRunner
from rnn_engine_server.store.batches import Batch, Batches, Endpoint
from rnn_engine_states.cache.config import CacheConfig

_WINDOW: Final = "30d"  # the longest
_PIECE_BYTES: Final = 1 << 20
_LOOK_SECONDS: Final = 0.2
_UNBOUNDED: Final = 1 << 62
_LIMITS: Final = Limits(
    max_file_bytes=_UNBOUNDED, max_key_file_bytes=_UNBOUNDED, max_all_file_bytes=_UNBOUNDED, max_batch_lines=_UNBOUNDED
)


@contextmanager
def local_batches(
    model: Path, loading: LoadSettings, states: StateSettings, slots: int, folder: Path
) -> Iterator[LocalBatches]:
    """Load a model, and yield its batches, kept in `folder`. Raises StateError if another process uses that."""
    choice = EngineChoice(model, loading, slots, cache=CacheConfig(), states=with_demo_state(model, states))
    settings = ServerSettings(job_folder=folder, any_model=True, limits=_LIMITS)
    with engine_session(choice) as session:
        app, running = make_app(session.engine, settings), AsyncExitStack()
        session.run(running.enter_async_context(serving(app, (), settings)))
        try:
            yield LocalBatches(session, app[BATCHES], app[RUNNER])
        finally:
            session.run(running.aclose())


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a batch has come: its status as OpenAI has it, its counts of requests, and at its end its files."""

    status: str
    total: int
    completed: int
    failed: int
    errors: Sequence[str]  # for which it can't be run
    output_id: str | None
    error_id: str | None


class LocalBatches:
    """The batches of an engine in this process, with the store and the runner of a server's."""

    def __init__(self, session: Session, store: Batches, runner: BatchRunner) -> None:
        self._session = session
        self._store = store
        self._runner = runner

    def create(self, file: Path, endpoint: str) -> str:
        """Begin a batch of the requests in `file`, and return its id."""
        if endpoint not in get_args(Endpoint):
            raise InvalidRequestError("url", endpoint, f"one of {', '.join(get_args(Endpoint))}")
        return self._session.run(self._create(file, endpoint)).id

    async def _create(self, file: Path, endpoint: str) -> Batch:
        async with self._store.files.create(ANYONE.name) as new:
            with file.open("rb") as content:
                while piece := content.read(_PIECE_BYTES):
                    await new.write(piece)
            new.describe(file.name, "batch", None)
        assert new.stored is not None
        stored_id = new.stored.id
        return await self._runner.begin(lambda: self._store.create(ANYONE.name, endpoint, stored_id, _WINDOW))

    def get(self, batch_id: str) -> Reached:
        batch = self._store.shown(self._session.run(self._store.get(ANYONE.name, batch_id)))
        output_id, error_id = batch.result_ids
        return Reached(
            batch.status,
            batch.total,
            batch.completed,
            batch.failed,
            [error.message if error.line is None else f"line {error.line}: {error.message}" for error in batch.errors],
            output_id,
            error_id,
        )

    def wait(self) -> None:
        """Wait until it is worth looking again how far a batch has come."""
        self._session.run(asyncio.sleep(_LOOK_SECONDS))

    def download(self, file_id: str, to: Path) -> None:
        """Write a file of results to `to`, either completely or not at all."""
        path = self._session.run(self._store.files.content(ANYONE.name, file_id))
        with path.open("rb") as content, output_file(to) as copy:
            shutil.copyfileobj(content, copy)
