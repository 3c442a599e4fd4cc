"""The models that a server serves, by name. They are loaded if a request names them, and unloaded if unused."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeAlias

from rnn_engine.errors import InvalidRequestError, ModelNotFoundError, RnnEngineError, UnavailableError
from rnn_engine.forward import Progress
from rnn_engine.interface import EngineInfo, EngineLike
from rnn_engine.telemetry import Health
from rnn_engine_server.core.routing import AppKey
from rnn_engine_server.core.tasks import uninterrupted
from rnn_engine_server.models.orders import LoadEngine, LoadOrder, MakeLoad

# One model of a server: loaded for the requests that name it, and freed when nothing uses it.

ModelStatus: TypeAlias = Literal["loaded", "loading", "unloading", "unloaded"]

_LOAD_RETRY_SECONDS = 5.0
_LATEST = ":latest"  # that clients of Ollama add to a name
_log = logging.getLogger(__name__)


class LoadProgress(NamedTuple):
    """A report on the progress of loading a model: `done` of `total` parts of the running step `what` are done."""

    what: str
    done: int
    total: int


class ServedModel:
    """One served model: its engine if loaded, and the number of requests that use it. For the event loop.

    At most one load or unload of it runs at a time. Requests that come meanwhile wait for the load; running ones keep
    their engine until they end.
    """

    def __init__(
        self, order: LoadOrder, load: LoadEngine, loading: asyncio.Lock, engine: EngineLike | None = None
    ) -> None:
        """Make a model that is not loaded, or one with the given `engine`.

        `loading` is a lock that all models share. It is held during a load, so that each sees the memory that others
        took.
        """
        self.order = order
        self.running = 0
        self.progress: LoadProgress | None = None  # of the running load, after its first report
        self.used = time.monotonic()  # when its last request ended, or when it was loaded
        self._load = load
        self._loading = loading
        self.engine = engine  # for new requests; None if the model is not loaded
        self._leaving: EngineLike | None = None  # it waits for its running requests, or is being closed
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
    def open_engine(self) -> EngineLike | None:
        """The model's engine, also while it finishes its last requests before it is freed; None if there is none."""
        return self.engine or self._leaving

    @property
    def info(self) -> EngineInfo | None:
        """The properties of the model since it was last loaded; None if it was never loaded."""
        return self._info if self.engine is None else self.engine.info

    @property
    def status(self) -> ModelStatus:
        if self.engine is not None:
            return "loaded"
        if self._leaving is not None:
            return "unloading"
        return "unloaded" if self._opening is None or self._opening.done() else "loading"

    @property
    def health(self) -> Health:
        """The health of the model's engine. A model without an engine is healthy unless it was withdrawn."""
        if self.engine is not None:
            return self.engine.health()
        return Health("closing", f"the model {self.name!r} is unloaded") if self._withdrawn else Health()

    def idle_seconds(self, now: float) -> float:
        """Return how many seconds ago the model's last request ended, 0 if one is running.

        `now` is by `time.monotonic`.
        """
        return 0.0 if self.running else now - self.used

    async def acquire(self, wait_seconds: float) -> EngineLike:
        """Return the model's engine and count one more running request, loading the model first if necessary.

        Raises UnavailableError if the model was withdrawn, can't be loaded, or is not loaded within `wait_seconds`.
        """
        while (engine := self.engine) is None:
            await self._wait_for_load(wait_seconds)
        self.running += 1
        self._unused.clear()
        return engine

    def release(self) -> None:
        """Count a request that used the model as ended."""
        self.running -= 1
        self.used = time.monotonic()
        if self.running == 0:
            self._unused.set()

    async def load(self) -> EngineLike:
        """Load the model unless it is loaded, and return its engine.

        Raises the error of the load if it fails, and UnavailableError if the model is closed meanwhile.
        """
        self._withdrawn = False
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_note_error)
        opening, task = self._opening, asyncio.current_task()
        assert task is not None
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if task.cancelling() or not opening.cancelled():
                raise
            raise UnavailableError(f"the model {self.name!r} is closed", _LOAD_RETRY_SECONDS) from None

    async def reload(self, order: LoadOrder, load: LoadEngine) -> None:
        """Replace the model by the one that `order` describes once its running requests have ended; new requests wait.

        Raises what loading raises; the next request then loads the model with the order that it had before.
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
        """Wait until the model's running requests have ended, and free its engine.

        With `withdraw`, new requests are rejected until `load` is called; otherwise the next request loads the model.
        """
        self._withdrawn = self._withdrawn or withdraw
        if self._freeing is None or self._freeing.done():
            self._freeing = asyncio.create_task(self._free())
        await asyncio.shield(self._freeing)

    async def close(self) -> None:
        """End the model's running requests, and free its engine. It can't be loaded again."""
        self._withdrawn, self._load = True, _refuse_load
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        for engine in (self.engine, self._leaving):
            if engine is not None:
                await engine.close()
        if self._freeing is not None:
            await self._freeing

    async def _wait_for_load(self, wait_seconds: float) -> None:
        if self._withdrawn:
            raise UnavailableError(
                f"the model {self.name!r} is unloaded; an admin can load it again", _LOAD_RETRY_SECONDS
            )
        try:
            async with asyncio.timeout(wait_seconds):
                await self.load()
        except TimeoutError:
            message = f"the model {self.name!r} was not loaded within {wait_seconds:g} s"
            raise UnavailableError(message, _LOAD_RETRY_SECONDS) from None
        except (RnnEngineError, OSError) as error:
            _log.warning("the model %r can't be loaded: %s", self.name, error)
            raise UnavailableError(f"the model {self.name!r} can't be loaded: {error}", _LOAD_RETRY_SECONDS) from error

    async def _open(self) -> EngineLike:
        async with self._changing:
            if self.engine is None:
                async with self._loading:
                    self.progress = None
                    self.engine = await self._load(self._note_progress)
                self.used = time.monotonic()
            return self.engine

    def _note_progress(self, what: str, done: int, total: int) -> None:
        """Store the progress of loading the model. Called on any thread."""
        self.progress = LoadProgress(what, done, total)

    async def _free(self) -> None:
        async with self._changing:
            if self.engine is None:
                return
            engine = self._leaving = self.engine
            self.engine, self._info = None, engine.info
            try:
                await self._unused.wait()
                await engine.close()
            finally:
                self._leaving = None
        _log.info("the model %r was unloaded", self.name)


def _note_error(task: asyncio.Task[EngineLike]) -> None:
    """Mark the error of a failed load as seen: asyncio must not log it if no request waits for the load any more."""
    if not task.cancelled():
        task.exception()


_RETRY_SECONDS = 60.0


class ModelRegistry:
    """All served models by name, and which one is the default. For the event loop."""

    def __init__(self, make_load: MakeLoad) -> None:
        """Make a registry without models.

        `make_load` takes a `LoadOrder` and returns the function that loads that model.
        """
        self._make_load = make_load
        self._models: dict[str, ServedModel] = {}
        self._default = ""
        self._loading = asyncio.Lock()
        self._putting = defaultdict[str, asyncio.Lock](asyncio.Lock)  # by the name of the model

    @classmethod
    async def load(cls, orders: Sequence[LoadOrder], default: str, make_load: MakeLoad) -> Self:
        """Load all models of `orders`, one after another, and return their registry.

        If a load fails, raises its error after freeing the models loaded before.
        """
        registry = cls(make_load)
        try:
            for order in orders:
                await registry.put(order)
            registry.set_default(default)
        except BaseException:
            await registry.close()
            raise
        return registry

    @classmethod
    def of(cls, engine: EngineLike) -> Self:
        """Return the registry of a single model that is loaded already."""
        registry = cls(lambda _order: _refuse_load)
        registry._add(LoadOrder(engine.info.model, Path(engine.info.model)), engine)
        return registry

    @property
    def default(self) -> ServedModel:
        """The model that serves requests which name no model."""
        return self._models[self._default]

    def __len__(self) -> int:
        return len(self._models)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(tuple(self._models.values()))

    @uninterrupted
    async def put(self, order: LoadOrder) -> ServedModel:
        """Load the model that `order` describes, and add it or replace the model of the same name by it.

        The first model becomes the default. Raises what loading raises; a new model is then not added. The load goes on
        if the caller is cancelled.
        """
        async with self._putting[order.name]:
            model = self._models.get(order.name)
            if model is not None:
                await model.reload(order, self._make_load(order))
                return model
            model = self._add(order)
            try:
                await model.load()
            except BaseException:
                await model.close()
                del self._models[order.name]
                raise
            return model

    @uninterrupted
    async def replace_default(self, order: LoadOrder) -> ServedModel:
        """Load the model that `order` describes, and make it the default; the previous default is then unloaded.

        Raises what loading raises; the default then stays. All that is done also if the caller is cancelled.
        """
        before = self.default
        model = await self.put(order)
        self.set_default(model.name)
        if before is not model:
            await before.unload(withdraw=True)
        return model

    def find(self, name: str) -> ServedModel:
        """Return the served model called `name`. Raises ModelNotFoundError if there is none."""
        found = self._models.get(name)
        if found is None:
            names = ", ".join(map(repr, self._models))
            raise ModelNotFoundError(f"model: there is no model {name[:80]!r}; this server has {names}")
        return found

    def find_state(self, name: str) -> tuple[ServedModel, str | None]:
        """Return the served model of `MODEL` or `MODEL:STATE`, and `STATE`. Raises ModelNotFoundError.

        It is not checked if there is such a state; `ModelUse` does that. `latest` is none.
        """
        if name not in self._models and name.endswith(_LATEST):
            name = name[: -len(_LATEST)]
        model = max((known for known in self._models if name.startswith(f"{known}:")), key=len, default=None)
        if name in self._models or model is None:
            return self.find(name), None
        return self._models[model], name[len(model) + 1 :]

    def check_unused(self, path: Path, field: str, text: str) -> None:
        """Raise InvalidRequestError if some model was loaded from the file or folder at `path`.

        The error names `field` and shows `text`.
        """
        user = next((model for model in self if model.order.uses(path)), None)
        if user is not None:
            allowed = f"another place, since the model {user.name!r} was loaded from it"
            raise InvalidRequestError(field, text, allowed)

    def set_default(self, name: str) -> None:
        """Make the model called `name` the default, which serves requests that name no model.

        Raises ModelNotFoundError.
        """
        self._default = self.find(name).name

    def infos(self) -> tuple[EngineInfo, ...]:
        """Return the properties of all models that have been loaded at least once, those of the default first."""
        models = (self.default, *(model for model in self if model is not self.default))
        return tuple(model.info for model in models if model.info is not None)

    def health(self) -> Health:
        """Return the health of the first model that is not healthy, or of the default if all are.

        Models that are not loaded are left out, except the default.
        """
        found = [self.default.health, *(model.health for model in self if model.engine is not None)]
        return next((health for health in found if health.status != "ok"), found[0])

    def _add(self, order: LoadOrder, engine: EngineLike | None = None) -> ServedModel:
        model = self._models[order.name] = ServedModel(order, self._make_load(order), self._loading, engine)
        self._default = self._default or order.name
        return model

    async def unload_idle(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Unload every model that no request has used for `seconds`."""
        now = clock()
        for model in self:
            if model.engine is not None and not model.running and model.idle_seconds(now) >= seconds:
                await model.unload(withdraw=False)

    async def close(self) -> None:
        """End the running requests of all models, and free the models. None can be loaded any more."""
        self._make_load = lambda _order: _refuse_load
        for model in self:
            await model.close()


async def _refuse_load(_progress: Progress) -> EngineLike:
    raise UnavailableError("this model can't be loaded again; restart the server", _RETRY_SECONDS)


class ModelUse:
    """One request's use of a model, which keeps the chosen model loaded until `release`."""

    def __init__(
        self,
        registry: ModelRegistry,
        restrict: Callable[[EngineLike, str | None, str | None], EngineLike],
        *,
        wait_seconds: float,
        any_name: bool,
    ) -> None:
        """Prepare to choose a model for the request. The load of the model may take up to `wait_seconds`.

        With `any_name`, a name that no model has stands for the default. `restrict` returns an engine as the client
        sees it, with a salt of the cache and the name of the state that stands for its default one.
        """
        self._registry = registry
        self._restrict = restrict
        self._wait_seconds = wait_seconds
        self._any_name = any_name
        self._model: ServedModel | None = None
        self._engine: EngineLike | None = None
        self.state: str | None = None  # the name of the state that stands for the model's default one

    @property
    def engine(self) -> EngineLike:
        """The engine of the model that was chosen for the request, as the client sees it."""
        if self._engine is None:
            raise RuntimeError("a handler asked for the engine before it read the body, which chooses the model")
        return self._engine

    async def choose(self, name: str | None, cache_salt: str | None = None) -> None:
        """Choose the model called `name` for the request, or the default model for None, and load it if necessary.

        In `MODEL:STATE`, `STATE` is the name of the state from which requests start that name none. Raises
        ModelNotFoundError, also if the client sees no such state, or UnavailableError if the model can't be loaded in
        time. `cache_salt` divides the client's part of the cache.
        """
        model, self.state = self._find(name)
        self.release()
        engine = await model.acquire(self._wait_seconds)
        self._model = model
        self._engine = self._restrict(engine, cache_salt, self.state)
        if self.state is not None:
            await self._engine.states.default()

    def _find(self, name: str | None) -> tuple[ServedModel, str | None]:
        if not name:
            return self._registry.default, None
        try:
            return self._registry.find_state(name)
        except ModelNotFoundError:
            if not self._any_name:
                raise
            return self._registry.default, None

    def release(self) -> None:
        if self._model is not None:
            self._model.release()
            self._model = None


MODELS = AppKey("models", ModelRegistry)
"""The models that the application serves, for handlers."""
