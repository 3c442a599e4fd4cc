"""The models of a server by name, and the one that a request uses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rnn_engine.errors import InvalidRequestError, ModelNotFoundError, UnavailableError
from rnn_engine.forward import Progress
from rnn_engine.health import Health
from rnn_engine.interface import EngineInfo, EngineLike
from server.models.orders import LoadOrder, MakeLoad
from server.models.served import ServedModel

_RETRY_SECONDS = 60.0


class ModelRegistry:
    """The models by name, one of which is the default. For the event loop."""

    def __init__(self, make_load: MakeLoad) -> None:
        """`make_load` gives what loads a model as it was ordered."""
        self._make_load = make_load
        self._models: dict[str, ServedModel] = {}
        self._default = ""
        self._loading = asyncio.Lock()

    @classmethod
    async def load(cls, orders: Sequence[LoadOrder], default: str, make_load: MakeLoad) -> Self:
        """Load all models, one after another. Raises what loading raises; none stays loaded then."""
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
        """Return the registry of one model that is loaded already."""
        registry = cls(lambda _order: _refuse_load)
        registry._add(LoadOrder(engine.info.model, Path(engine.info.model)), engine)
        return registry

    @property
    def default(self) -> ServedModel:
        """The model of requests that name none."""
        return self._models[self._default]

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(tuple(self._models.values()))

    async def put(self, order: LoadOrder) -> ServedModel:
        """Load a model, in place of the one of its name if there is one. The first one is the default.

        Raises what loading raises; a model that was not there before is not added then.
        """
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

    def find(self, name: str) -> ServedModel:
        """Raise ModelNotFoundError where there is no such model."""
        found = self._models.get(name)
        if found is None:
            names = ", ".join(map(repr, self._models))
            raise ModelNotFoundError(f"model: there is no model {name[:80]!r}; this server has {names}")
        return found

    def check_unused(self, path: Path, field: str, text: str) -> None:
        """Raise InvalidRequestError if a model is loaded from the file or folder at `path`.

        The error names `field` and shows `text`.
        """
        user = next((model for model in self if model.order.uses(path)), None)
        if user is not None:
            allowed = f"another place, since the model {user.name!r} was loaded from it"
            raise InvalidRequestError(field, text, allowed)

    def set_default(self, name: str) -> None:
        """Let the model of that name answer requests that name none. Raises ModelNotFoundError."""
        self._default = self.find(name).name

    def infos(self) -> tuple[EngineInfo, ...]:
        """Return the facts of the models that were loaded once, those of the default first."""
        models = (self.default, *(model for model in self if model is not self.default))
        return tuple(model.info for model in models if model.info is not None)

    def health(self) -> Health:
        """Return the health of the first that is not well, of the default and the models that are loaded."""
        found = [self.default.health, *(model.health for model in self if model.engine is not None)]
        return next((health for health in found if health.status != "ok"), found[0])

    def _add(self, order: LoadOrder, engine: EngineLike | None = None) -> ServedModel:
        model = self._models[order.name] = ServedModel(order, self._make_load(order), self._loading, engine)
        self._default = self._default or order.name
        return model

    async def unload_idle(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Unload every model that no request has used for so long."""
        now = clock()
        for model in self:
            if model.engine is not None and not model.running and now - model.used >= seconds:
                await model.unload(withdraw=False)

    async def close(self) -> None:
        """End the requests that run, and free all models."""
        for model in self:
            await model.close()


async def _refuse_load(_progress: Progress) -> EngineLike:
    raise UnavailableError("this model can't be loaded again; restart the server", _RETRY_SECONDS)


class ModelUse:
    """The model that one request uses, from when it is chosen to the end of the block."""

    def __init__(self, registry: ModelRegistry, *, wait_seconds: float, any_name: bool) -> None:
        """With `any_name` a name that no model has means the default."""
        self._registry = registry
        self._wait_seconds = wait_seconds
        self._any_name = any_name
        self._model: ServedModel | None = None
        self._engine: EngineLike | None = None

    @property
    def engine(self) -> EngineLike:
        """The engine of the model that was chosen."""
        if self._engine is None:
            raise RuntimeError("a handler asked for the engine before it read the body, which chooses the model")
        return self._engine

    async def choose(self, name: str | None) -> None:
        """Choose the model by its name, or the default for None; load it where it is not loaded.

        Raises ModelNotFoundError, or UnavailableError where it can't be loaded in time.
        """
        model = self._find(name)
        self._release()
        self._engine = await model.acquire(self._wait_seconds)
        self._model = model

    def _find(self, name: str | None) -> ServedModel:
        if not name:
            return self._registry.default
        try:
            return self._registry.find(name)
        except ModelNotFoundError:
            if not self._any_name:
                raise
            return self._registry.default

    def _release(self) -> None:
        if self._model is not None:
            self._model.release()
            self._model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._release()
