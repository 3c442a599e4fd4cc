"""What the application carries for its handlers: the engine, the settings and the count of running requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from aiohttp import web

from rnn_engine.embedder import Embedder
from rnn_engine.errors import EngineClosedError, NotFoundError
from rnn_engine.interface import EngineLike
from rnn_engine.requests import Client
from server.connections.counters import ConnectionCounters
from server.doors.addresses import network_of
from server.doors.engine import OwnEngine
from server.doors.rates import UNBOUNDED, Quotas, Spending
from server.doors.scopes import Principal
from server.http.memory import MemoryBudget, MemoryLease
from server.models.orders import ModelFolder
from server.models.registry import ModelRegistry, ModelUse
from server.openapi.document import DocumentMaker
from server.settings import ServerSettings
from server.state.bounded import KeptUsage
from server.state.conversations import ConversationStore
from server.state.responses import ResponseStore
from server.state.slots import PromptTable
from server.telemetry.http_counters import HttpCounters
from server.telemetry.metrics import Metrics
from server.telemetry.recent import RecentReports
from server.telemetry.record import RequestRecord
from server.telemetry.traces import RequestTracer


class Lifecycle:
    """Counts the running requests, refuses new ones once closing, and waits for the last to end."""

    def __init__(self) -> None:
        self._active = 0
        self._closing = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    async def wait_closing(self) -> None:
        """Return when no more requests are taken."""
        await self._closing.wait()

    @property
    def active(self) -> int:
        return self._active

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count one request while the block runs. Raises EngineClosedError once closing."""
        if self.closing:
            raise EngineClosedError("the server is stopping and takes no new requests")
        self._active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._active -= 1
            if self._active == 0:
                self._idle.set()

    async def drain(self, seconds: float) -> bool:
        """Take no more requests and wait for the running ones; return False if some still run after `seconds`."""
        self._closing.set()
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True


MODELS = web.AppKey("models", ModelRegistry)
MODEL_USE = web.RequestKey("model_use", ModelUse)
"""The model that a request uses; handlers take `engine_of`."""

SETTINGS = web.AppKey("settings", ServerSettings)
LIFECYCLE = web.AppKey("lifecycle", Lifecycle)
BUDGET = web.AppKey("budget", MemoryBudget)
WORKERS: web.AppKey[Executor] = web.AppKey("workers", Executor)
LEASE = web.RequestKey("lease", MemoryLease)
LEFT_OUT: web.RequestKey[set[str]] = web.RequestKey("left_out", set)
"""The names of the fields of a body that nothing knows; absent before the body was read."""

CONNECTIONS = web.AppKey("connections", ConnectionCounters)
HTTP_COUNTERS = web.AppKey("http_counters", HttpCounters)
METRICS = web.AppKey("metrics", Metrics)
TRACER = web.AppKey("tracer", RequestTracer)
"""Absent where there are no traces."""

API_DOCUMENT = web.AppKey("api_document", DocumentMaker)
EMBEDDER = web.AppKey("embedder", Embedder)
"""Absent where there is no embedding model."""

RESPONSES = web.AppKey("responses", ResponseStore)
CONVERSATIONS = web.AppKey("conversations", ConversationStore)
SLOT_PROMPTS = web.AppKey("slot_prompts", PromptTable)
RECORD = web.RequestKey("record", RequestRecord)
RECENT = web.AppKey("recent", RecentReports)
PRINCIPAL: web.RequestKey[Principal] = web.RequestKey("principal", Principal)
"""Who sent a request; absent where nobody was asked, as on routes that always answer, or the key was wrong."""

QUOTAS = web.AppKey("quotas", Quotas)
SPENDING = web.RequestKey("spending", Spending)
"""What a request takes of its client's quota; absent where there is none, or no engine was asked for."""


def kept_usage(app: web.Application) -> dict[str, KeptUsage]:
    """Return what is kept of requests for later ones, by what it is. For any thread."""
    return {
        "responses": app[RESPONSES].usage,
        "conversations": app[CONVERSATIONS].usage,
        "slot_prompts": app[SLOT_PROMPTS].usage,
    }


def folder_of(request: web.Request) -> ModelFolder:
    """Return the folder of models. Raises NotFoundError where the operator has named none."""
    settings = request.app[SETTINGS]
    if settings.model_folder is None:
        raise NotFoundError("the server has no folder of models; the operator can name one with --model-folder")
    return ModelFolder(settings.model_folder, settings.admin_folders)


def engine_of(request: web.Request, cache_salt: str | None = None) -> EngineLike:
    """Return the engine of the model that a request names, as whoever sent it sees it.

    The body, where the route has one, is to be read first. `cache_salt` divides the cache further.
    """
    return _own(request, request[MODEL_USE].engine, cache_salt)


def open_engines_of(request: web.Request) -> dict[str, EngineLike]:
    """Return the engines of all models that are loaded, by the models' names, as whoever asks sees them."""
    engines = {model.name: model.open_engine for model in request.app[MODELS]}
    return {name: _own(request, engine) for name, engine in engines.items() if engine is not None}


def client_of(request: web.Request) -> Client:
    """Return who a request counts for, where clients share something: its API key, or without keys its address."""
    principal = request[PRINCIPAL]
    return Client(principal.name or network_of(request.remote or ""), principal.weight)


async def tell_quota(request: web.Request, response: web.StreamResponse) -> None:
    """Add what is left of the client's quota to an answer's headers. A signal handler of aiohttp's."""
    if (spending := request.get(SPENDING)) is not None:
        response.headers.update(spending.headers)


def _own(request: web.Request, engine: EngineLike, cache_salt: str | None = None) -> EngineLike:
    doors, client = request.app[SETTINGS].doors, client_of(request)
    rate = request[PRINCIPAL].rate or doors.rate
    if SPENDING not in request and rate != UNBOUNDED:
        request[SPENDING] = Spending(request.app[QUOTAS], client.name, rate)
    return OwnEngine(
        engine,
        request[PRINCIPAL],
        client,
        request.get(SPENDING),
        cache_salt=cache_salt,
        share_cache=doors.share_cache,
    )
