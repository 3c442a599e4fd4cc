"""One model of a server: loaded for the requests that name it, and freed when nothing needs it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Literal, NamedTuple, TypeAlias

from rnn_engine.errors import RnnEngineError, UnavailableError
from rnn_engine.health import Health
from rnn_engine.interface import EngineInfo, EngineLike
from server.models.orders import LoadEngine, LoadOrder

ModelStatus: TypeAlias = Literal["loaded", "loading", "unloading", "unloaded"]

_RETRY_SECONDS = 5.0
_log = logging.getLogger(__name__)


class LoadProgress(NamedTuple):
    """What a load does, and how many parts of it are done."""

    what: str
    done: int
    total: int


class ServedModel:
    """A model with the requests that use it. For the event loop.

    At most one load or unload of it runs at a time. Requests that come meanwhile wait for the load; those that run
    keep their engine until they end.
    """

    def __init__(
        self, order: LoadOrder, load: LoadEngine, loading: asyncio.Lock, engine: EngineLike | None = None
    ) -> None:
        """`loading` is held while a model is loaded, so that each is planned by what the others have taken.

        `engine` is that of a model that is loaded already.
        """
        self.order = order
        self.running = 0
        self.progress: LoadProgress | None = None  # of the load that runs, once it has told any
        self.used = time.monotonic()  # when its last request ended, or when it was loaded
        self._load = load
        self._loading = loading
        self._engine = engine
        self._leaving: EngineLike | None = None  # its running requests are waited for, or it is being closed
        self._info: EngineInfo | None = None
        self._withdrawn = False
        self._opening: asyncio.Task[EngineLike] | None = None
        self._freeing: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._unused = asyncio.Event()
        self._unused.set()

    @property
    def name(self) -> str:
        return self.order.name

    @property
    def engine(self) -> EngineLike | None:
        """The engine for new requests; None where the model is not loaded."""
        return self._engine

    @property
    def open_engine(self) -> EngineLike | None:
        """The engine as long as it runs requests; None where there is none."""
        return self._engine or self._leaving

    @property
    def info(self) -> EngineInfo | None:
        """The facts of the model as it was loaded last; None where it never was."""
        return self._info if self._engine is None else self._engine.info

    @property
    def status(self) -> ModelStatus:
        if self._engine is not None:
            return "loaded"
        if self._leaving is not None:
            return "unloading"
        return "unloaded" if self._opening is None or self._opening.done() else "loading"

    @property
    def health(self) -> Health:
        """That of its engine. A model that is loaded at the next request for it is well."""
        if self._engine is not None:
            return self._engine.health()
        return Health("closing", f"the model {self.name!r} is unloaded") if self._withdrawn else Health()

    async def acquire(self, wait_seconds: float) -> EngineLike:
        """Return the engine for one more request, which is loaded first where it is not; `release` it.

        Raises UnavailableError where the model was withdrawn, can't be loaded, or is not within `wait_seconds`.
        """
        while (engine := self._engine) is None:
            await self._wait_for_load(wait_seconds)
        self.running += 1
        self._unused.clear()
        return engine

    def release(self) -> None:
        """Tell that a request with the engine has ended."""
        self.running -= 1
        self.used = time.monotonic()
        if self.running == 0:
            self._unused.set()

    async def load(self) -> EngineLike:
        """Load the model unless it is, and return its engine. Raises what loading raises."""
        self._withdrawn = False
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_note_error)
        return await asyncio.shield(self._opening)

    async def reload(self, order: LoadOrder, load: LoadEngine) -> None:
        """Load the model in another way when the requests that run have ended; new ones wait for that.

        Raises what loading raises; the next request loads the model as it was then.
        """
        before = self.order, self._load
        self.order, self._load = order, load
        try:
            await self.unload(withdraw=False)
            await self.load()
        except BaseException:
            self.order, self._load = before
            raise

    async def unload(self, *, withdraw: bool) -> None:
        """Take no new requests, wait for those that run, and free the engine.

        A model that is withdrawn is loaded again by `load` alone, any other one by the next request for it.
        """
        self._withdrawn = self._withdrawn or withdraw
        if self._freeing is None or self._freeing.done():
            self._freeing = asyncio.create_task(self._free())
        await asyncio.shield(self._freeing)

    async def close(self) -> None:
        """End the requests that run, and free the engine."""
        self._withdrawn = True
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        for engine in (self._engine, self._leaving):
            if engine is not None:
                await engine.close()
        if self._freeing is not None:
            await self._freeing

    async def _wait_for_load(self, wait_seconds: float) -> None:
        if self._withdrawn:
            raise UnavailableError(f"the model {self.name!r} is unloaded; an admin can load it again", _RETRY_SECONDS)
        try:
            async with asyncio.timeout(wait_seconds):
                await self.load()
        except TimeoutError:
            message = f"the model {self.name!r} was not loaded within {wait_seconds:g} s"
            raise UnavailableError(message, _RETRY_SECONDS) from None
        except (RnnEngineError, OSError) as error:
            _log.warning("the model %r can't be loaded: %s", self.name, error)
            raise UnavailableError(f"the model {self.name!r} can't be loaded: {error}", _RETRY_SECONDS) from error

    async def _open(self) -> EngineLike:
        async with self._changing:
            if self._engine is None:
                async with self._loading:
                    self.progress = None
                    self._engine = await self._load(self._note_progress)
                self.used = time.monotonic()
            return self._engine

    def _note_progress(self, what: str, done: int, total: int) -> None:
        """Called on any thread."""
        self.progress = LoadProgress(what, done, total)

    async def _free(self) -> None:
        async with self._changing:
            if self._engine is None:
                return
            engine = self._leaving = self._engine
            self._engine, self._info = None, engine.info
            try:
                await self._unused.wait()
                await engine.close()
            finally:
                self._leaving = None
        _log.info("the model %r was unloaded", self.name)


def _note_error(task: asyncio.Task[EngineLike]) -> None:
    """Take the error of a load that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
