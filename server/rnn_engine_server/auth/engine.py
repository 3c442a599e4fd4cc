"""An engine and its named states, restricted to what the sender of a request may see and change."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from rnn_engine.errors import ForbiddenError
from rnn_engine.interface import EngineInfo, EngineLike
from rnn_engine.requests import ANONYMOUS, Client, Event, GenerateRequest
from rnn_engine.telemetry import SlotUse
from rnn_engine_server.auth.keys import UNBOUNDED, Principal, Rate, Scope
from rnn_engine_server.auth.quotas import RateLimiter, Spending
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.routing import SETTINGS, AppKey
from rnn_engine_server.models.registry import MODELS
from rnn_engine_states.cache.browse import CacheTree, TreeQuery
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.named.entry import (
    NamedState,
    Retention,
    check_name,
    check_new_name,
    full_name,
    name_taken,
    split_name,
)
from rnn_engine_states.named.store import Viewer
from rnn_engine_states.named.table import NamedStateTable

P = ParamSpec("P")
T = TypeVar("T")


def _passed_on(method: Callable[Concatenate[EngineLike, P], T]) -> Callable[Concatenate[OwnEngine, P], T]:
    """Return a method of `OwnEngine` that calls the engine's method."""

    def call(own: OwnEngine, /, *arguments: P.args, **options: P.kwargs) -> T:
        found: Callable[P, T] = getattr(own._engine, method.__name__)
        return found(*arguments, **options)

    return call


class OwnEngine:
    """An engine restricted to the named states and the part of the cache that one principal (API key) may use.

    A prompt that another client had before is quicker, and `cached_tokens` shows it, so a shared cache would let
    clients guess what others have asked. Each key therefore has a part of its own, unless the operator lets all share.

    Routes reach the engine only through this class, so they need no ownership checks for states and the cache.
    """

    def __init__(self, call: Call, engine: EngineLike, cache_salt: str | None = None, state: str | None = None) -> None:
        """Restrict `engine` to what the sender of `call` may use, within the client's quota.

        `cache_salt` divides the principal's part of the cache. `state` names the state that stands for the default one,
        and that the model's name has at its end.
        """
        principal, auth = call.principal, call.app[SETTINGS].auth
        self._engine = engine
        self._info = None if state is None else replace(engine.info, model=f"{engine.info.model}:{state}")
        self._client = call.client
        self._spending = _spending(call, principal.rate or auth.rate)
        self.states = engine.states.seen_by(KeyViewer(principal, state))
        self._sees_all = principal.scope is Scope.ADMIN
        self._own_scope = None if auth.share_cache else principal.name
        self._cache_scope = _scope(self._own_scope or "", cache_salt)

    @property
    def info(self) -> EngineInfo:
        return self._info or self._engine.info

    @property
    def state_files(self) -> StateFiles:
        return self._engine.state_files

    def slot_uses(self) -> Sequence[SlotUse]:
        """Return a description of each busy slot of the engine: the request that uses it, and its progress.

        The owner of a request is left out unless it is this principal, or the principal is an admin.
        """
        return [self._shown(use) for use in self._engine.slot_uses()]

    async def cache_tree(self, query: TreeQuery) -> CacheTree:
        """Return the cached positions that this principal may see: its own, or those of all for an admin.

        If all principals share the cache, the owner of a position is not known, so only an admin sees any.
        """
        if self._sees_all:
            return await self._engine.cache_tree(query)
        if self._own_scope is None:
            return CacheTree((), 0, truncated=False)
        return await self._engine.cache_tree(replace(query, scope=self._own_scope))

    def check_queue(self, client: Client = ANONYMOUS) -> None:  # noqa: ARG002
        if self._spending is not None:
            self._spending.begin()
        self._engine.check_queue(self._client)

    def generate(self, request: GenerateRequest, *, wait_for_room: bool = False) -> AsyncGenerator[Event, None]:
        request = replace(request, client=self._client, cache_scope=self._cache_scope or request.cache_scope)
        events = self._engine.generate(request, wait_for_room=wait_for_room)
        return events if self._spending is None else self._spending.follow(request, events, has_begun=wait_for_room)

    # What is not restricted

    stats = _passed_on(EngineLike.stats)
    counters = _passed_on(EngineLike.counters)
    health = _passed_on(EngineLike.health)
    cache_stats = _passed_on(EngineLike.cache_stats)
    tokenize = _passed_on(EngineLike.tokenize)
    detokenize = _passed_on(EngineLike.detokenize)
    apply_head = _passed_on(EngineLike.apply_head)
    score_states = _passed_on(EngineLike.score_states)
    close = _passed_on(EngineLike.close)
    # Their routes need the scope `admin`.
    cache_tokens = _passed_on(EngineLike.cache_tokens)
    drop_cache_position = _passed_on(EngineLike.drop_cache_position)
    drop_cache = _passed_on(EngineLike.drop_cache)

    def _shown(self, use: SlotUse) -> SlotUse:
        owner = use.scope.partition("/")[0]
        return replace(use, scope=owner if self._sees_all or owner == self._own_scope else "")


def _scope(namespace: str, salt: str | None) -> str:
    """Return the name of the part of the cache for a namespace and, unless it is None, a salt.

    The salt is replaced by its hash, since the name is written to files.
    """
    if salt is None:
        return namespace
    return f"{namespace}/{hashlib.blake2b(salt.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


# The quotas that the application carries, and the engines that handlers may use.

RATE_LIMITER = AppKey("quotas", RateLimiter)


def open_engines_of(call: Call) -> dict[str, EngineLike]:
    """Return the engines of all loaded models, by model name, restricted to the request's principal."""
    engines = {model.name: model.open_engine for model in call.app[MODELS]}
    return {name: OwnEngine(call, engine) for name, engine in engines.items() if engine is not None}


def _spending(call: Call, rate: Rate) -> Spending | None:
    """Return what a call takes of its client's quota, the same at each time; None if there is no bound."""
    if call.spending is None and rate != UNBOUNDED:
        call.spending = Spending(call.app[RATE_LIMITER], call.client.name, rate)
    return call.spending


# The named states that one principal sees.
#
# States that a key makes are in the namespace of the key's name. Other keys can't see or use them: their names stay
# free for other keys, and no error message lists them. States with a plain name are shared: the operator's files,
# states that were made without keys, and those that a key with the scope `admin` made for all. Other keys may only read
# them. Without keys there is one principal, without a namespace, and all states belong to it.


class KeyViewer(Viewer):
    """One principal (API key) as it sees the named states: under names without its namespace."""

    def __init__(self, principal: Principal, default: str | None = None) -> None:
        """See what `principal` may see. `default` is the name of the default state if it is not that of the store."""
        self._is_admin = principal.scope is Scope.ADMIN
        self._scope = principal.scope
        self.home = principal.name
        self.listed = None if self._is_admin else principal.name
        self.default = default
        self.chooses_ids = self._is_admin  # an id that is taken reveals that its state exists

    def sees(self, entry: NamedState) -> bool:
        return self._is_admin or entry.namespace in ("", self.home)

    def shown(self, entry: NamedState) -> NamedState:
        """Return a state with its plain name, and read-only unless the principal may change it.

        An admin sees the states of other principals unchanged.
        """
        if entry.namespace not in ("", self.home):
            return entry
        mine = entry.namespace == self.home and self._scope.includes(Scope.MANAGE)
        read_only = entry.read_only or not (mine or self._is_admin)
        owner = None if entry.owner is None else split_name(entry.owner)[1]
        return replace(entry, name=entry.plain_name, owner=owner, read_only=read_only)

    def place(
        self, table: NamedStateTable, name: str, retention: Retention, moved: NamedState | None = None
    ) -> tuple[str, Retention]:
        """Return the full name and the retention of a new state, or of a state that is moved within its namespace.

        It comes to the shared states if `retention` says so. Raises ForbiddenError if the principal's scope does not
        allow that, and InvalidRequestError if the name is not plain, or is that of a shared state.
        """
        namespace = "" if retention.shared else self.home if moved is None else moved.namespace
        plain = name if moved is None or name != self.shown(moved).name else moved.plain_name
        place = full_name(namespace, plain)
        if moved is None or place != moved.name:
            self._check_new(table, plain, retention)
        if retention.owner is not None:
            check_name(retention.owner, "owner")
            retention = replace(retention, owner=full_name(namespace, retention.owner))
        return place, retention

    def _check_new(self, table: NamedStateTable, name: str, retention: Retention) -> None:
        needed = Scope.ADMIN if retention.shared else Scope.MANAGE
        if not self._scope.includes(needed):
            what = "shared" if retention.shared else "kept"
            raise ForbiddenError(
                f"states can't be {what} with the scope {self._scope.value!r}; that needs {needed.value!r}"
            )
        check_new_name(name, "name")
        if self.home and (shared := table.find(name)) is not None:
            raise name_taken(shared, "name")
