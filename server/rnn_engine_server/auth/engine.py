"""An engine and its named states, restricted to what the sender of a request may see and change."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from aiohttp import web

from rnn_engine.errors import ForbiddenError, ModelNotFoundError, NotFoundError
from rnn_engine.interface import EngineInfo, EngineLike, EngineStats
from rnn_engine.requests import ANONYMOUS, Client, Event, GenerateRequest
from rnn_engine.telemetry import EngineCounters, Health, SlotUse
from rnn_engine.types import F32, EmbeddingTask, State
from rnn_engine_server.auth.admission import PRINCIPAL, client_of
from rnn_engine_server.auth.keys import INCLUDED, Principal, Scope
from rnn_engine_server.auth.quotas import RateLimiter, Spending
from rnn_engine_server.auth.rates import UNBOUNDED
from rnn_engine_server.core.routing import SETTINGS
from rnn_engine_server.models.registry import MODEL_USE, MODELS
from rnn_engine_states.cache.browse import CacheTree, SnapshotNode, TreeQuery
from rnn_engine_states.cache.config import CacheStats
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.files.reading import StateForm
from rnn_engine_states.frozen import FrozenState
from rnn_engine_states.named.entry import (
    NamedState,
    OwnerLease,
    Retention,
    check_changeable,
    check_name,
    check_new_name,
    full_name,
    split_name,
)
from rnn_engine_states.named.store import StateStore
from rnn_engine_states.named.table import StateListing, StateUsage, name_taken


class OwnEngine:
    """An engine restricted to the named states and the part of the cache that one principal (API key) may use.

    A prompt that another client had before is quicker, and `cached_tokens` shows it, so a shared cache would let
    clients guess what others have asked. Each key therefore has a part of its own, unless the operator lets all share.

    Routes reach the engine only through this class, so they need no ownership checks of their own.
    """

    def __init__(
        self,
        engine: EngineLike,
        principal: Principal,
        client: Client = ANONYMOUS,
        spending: Spending | None = None,
        *,
        cache_salt: str | None = None,
        share_cache: bool = False,
        state: str | None = None,
    ) -> None:
        """Restrict `engine` to what `principal` may use. All engine requests are sent in the name of `client`.

        `spending` is the client's quota; None = no bound. `cache_salt` divides the principal's part of the cache. With
        `share_cache` all principals have one part. `state` names the state that stands for the default one, and that
        the model's name has at its end.
        """
        self._engine = engine
        self._info = None if state is None else replace(engine.info, model=f"{engine.info.model}:{state}")
        self._client = client
        self._spending = spending
        self._states = OwnStates(engine.states, principal, state)
        self._sees_all = principal.scope is Scope.ADMIN
        self._own_scope = None if share_cache else principal.name
        self._cache_scope = _scope(self._own_scope or "", cache_salt)

    @property
    def info(self) -> EngineInfo:
        return self._info or self._engine.info

    @property
    def states(self) -> StateStore:
        return self._states

    @property
    def state_files(self) -> StateFiles:
        return self._engine.state_files

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def slot_uses(self) -> Sequence[SlotUse]:
        """Return a description of each busy slot of the engine: the request that uses it, and its progress.

        The owner of a request is left out unless it is this principal, or the principal is an admin.
        """
        return [self._shown(use) for use in self._engine.slot_uses()]

    def counters(self) -> EngineCounters:
        return self._engine.counters()

    def health(self) -> Health:
        return self._engine.health()

    def cache_stats(self) -> CacheStats | None:
        return self._engine.cache_stats()

    async def cache_nodes(self, limit: int, scope: str | None = None) -> tuple[SnapshotNode, ...]:
        """Return the cached positions that this principal may see: its own, or those of all for an admin.

        If all principals share the cache, the owner of a position is not known, so only an admin sees any.
        """
        if self._sees_all:
            return await self._engine.cache_nodes(limit, scope)
        return () if self._own_scope is None else await self._engine.cache_nodes(limit, self._own_scope)

    async def cache_tree(self, query: TreeQuery) -> CacheTree:
        """Return the cached positions of all principals that match `query`, as a tree.

        This and the next three methods are for routes with the scope `admin`.
        """
        return await self._engine.cache_tree(query)

    async def cache_tokens(self, position: str) -> list[int]:
        return await self._engine.cache_tokens(position)

    async def drop_cache_position(self, position: str) -> bool:
        return await self._engine.drop_cache_position(position)

    async def drop_cache(self) -> int:
        return await self._engine.drop_cache()

    def tokenize(self, text: str) -> list[int]:
        return self._engine.tokenize(text)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        return self._engine.detokenize(tokens)

    def check_queue(self, client: Client = ANONYMOUS) -> None:  # noqa: ARG002
        if self._spending is not None:
            self._spending.begin()
        self._engine.check_queue(self._client)

    def generate(self, request: GenerateRequest, *, wait_for_room: bool = False) -> AsyncGenerator[Event, None]:
        request = replace(request, client=self._client, cache_scope=self._cache_scope or request.cache_scope)
        events = self._engine.generate(request, wait_for_room=wait_for_room)
        return events if self._spending is None else self._spending.follow(request, events, has_begun=wait_for_room)

    async def apply_head(self, features: F32, task: EmbeddingTask) -> F32:
        return await self._engine.apply_head(features, task)

    async def score_states(self, states: Sequence[State]) -> F32:
        return await self._engine.score_states(states)

    async def close(self) -> None:
        await self._engine.close()

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


# The quotas that the application and each request carry, and the engines that handlers may use.

RATE_LIMITER = web.AppKey("quotas", RateLimiter)
SPENDING = web.RequestKey("spending", Spending)
"""What a request takes of its client's quota. Absent if there is no quota, or the request has used no engine."""


def engine_of(request: web.Request, cache_salt: str | None = None) -> EngineLike:
    """Return the engine of the model that a request names, restricted to the request's principal.

    If the route has a body, the handler must have read it before. `cache_salt` divides the cache further.
    """
    use = request[MODEL_USE]
    return _own(request, use.engine, cache_salt, use.state)


async def check_default_state(request: web.Request) -> None:
    """Raise ModelNotFoundError if a request names a model with a state that does not exist for the client."""
    await engine_of(request).states.default()


def open_engines_of(request: web.Request) -> dict[str, EngineLike]:
    """Return the engines of all loaded models, by model name, restricted to the request's principal."""
    engines = {model.name: model.open_engine for model in request.app[MODELS]}
    return {name: _own(request, engine) for name, engine in engines.items() if engine is not None}


async def tell_quota(request: web.Request, response: web.StreamResponse) -> None:
    """Add to an answer the headers that report the client's remaining quota.

    A handler of aiohttp's signal `on_response_prepare`.
    """
    if (spending := request.get(SPENDING)) is not None:
        response.headers.update(spending.headers)


def _own(
    request: web.Request, engine: EngineLike, cache_salt: str | None = None, state: str | None = None
) -> EngineLike:
    auth, client = request.app[SETTINGS].auth, client_of(request)
    rate = request[PRINCIPAL].rate or auth.rate
    if SPENDING not in request and rate != UNBOUNDED:
        request[SPENDING] = Spending(request.app[RATE_LIMITER], client.name, rate)
    return OwnEngine(
        engine,
        request[PRINCIPAL],
        client,
        request.get(SPENDING),
        cache_salt=cache_salt,
        share_cache=auth.share_cache,
        state=state,
    )


# The named states that one principal sees.
#
# States that a key makes are in the namespace of the key's name. Other keys can't see or use them: their names stay
# free for other keys, and no error message lists them. States with a plain name are shared: the operator's files,
# states that were made without keys, and those that a key with the scope `admin` made for all. Other keys may only read
# them. Without keys there is one principal, without a namespace, and all states belong to it.


class OwnStates:
    """The named states that one principal (API key) may see, under names without its namespace: a `StateStore`."""

    def __init__(self, store: StateStore, principal: Principal, default: str | None = None) -> None:
        """Restrict `store` to what `principal` may use. `default` is the name of the default state if it is not that
        of the store.
        """
        self._store = store
        self._default = default
        self._namespace = principal.name
        self._scope = principal.scope

    async def find(self, name_or_id: str) -> NamedState | None:
        found = await self._find(name_or_id)
        return None if found is None else self._shown(found)

    async def missing(self, name_or_id: str, namespace: str) -> NotFoundError:
        seen = namespace if self._scope is Scope.ADMIN else self._namespace
        return await self._store.missing(name_or_id, seen)

    async def get(self, name_or_id: str) -> NamedState:
        held = await self._require(name_or_id)
        return self._shown(await self._store.get(str(held.id)))

    async def list(self, namespace: str | None = None) -> StateListing:
        """Return the named states that this principal sees, shared ones first.

        If `namespace` is given, list only the states in it.
        """
        if namespace is not None or self._scope is Scope.ADMIN:
            listing = await self._store.list(namespace)
        else:
            shared, listing = await self._store.list(""), await self._store.list(self._namespace)
            listing = replace(listing, entries=(*shared.entries, *listing.entries))
        return replace(listing, entries=tuple(self._shown(held) for held in listing.entries if self._sees(held)))

    def usage(self) -> StateUsage:
        return self._store.usage()

    async def default(self) -> NamedState | None:
        if self._default is not None:
            try:
                return await self.get(self._default)
            except NotFoundError as error:
                raise ModelNotFoundError(f"model: {error}") from None
        default = await self._store.default()
        return None if default is None else self._shown(default)

    async def check_place(self, name: str, retention: Retention, num_bytes: int) -> None:
        place = await self._place(name, retention)
        await self._store.check_place(place, self._owned(retention), num_bytes)

    async def put(
        self,
        name: str,
        frozen: FrozenState,
        retention: Retention,
        *,
        source: str,
        form: StateForm = "full",
        key: uuid.UUID | None = None,
    ) -> NamedState:
        """Store a new state under a name that is not in use, and return the named state.

        `key` is ignored unless the principal is an admin, since an id that is taken reveals that its state exists.
        """
        place = await self._place(name, retention)
        key = key if self._scope is Scope.ADMIN else None
        kept = self._owned(retention)
        return self._shown(await self._store.put(place, frozen, kept, source=source, form=form, key=key))

    async def compare_and_set(self, old: NamedState, frozen: FrozenState, *, source: str) -> NamedState:
        held = await self._find(str(old.id))
        if held is not None:
            check_changeable(self._shown(held), "state")
        return self._shown(await self._store.compare_and_set(old, frozen, source=source))

    async def fork(self, name_or_id: str, names: Sequence[str], retention: Retention) -> tuple[NamedState, ...]:
        held = await self._require(name_or_id)
        places = [await self._place(name, retention) for name in names]
        return tuple(map(self._shown, await self._store.fork(str(held.id), places, self._owned(retention))))

    async def move(self, name_or_id: str, name: str, retention: Retention) -> NamedState:
        """Rename a state within its namespace, or move it to the shared states if `retention` says so."""
        held = await self._require_changeable(name_or_id)
        namespace = "" if retention.shared else held.namespace
        plain = held.plain_name if name == self._shown(held).name else name
        place = full_name(namespace, plain)
        if place != held.name:
            await self._check_new(plain, retention)
        return self._shown(await self._store.move(str(held.id), place, _owned(retention, namespace)))

    async def delete(self, name_or_id: str) -> NamedState:
        held = await self._require_changeable(name_or_id)
        return self._shown(await self._store.delete(str(held.id)))

    async def leases(self, namespace: str | None = None) -> tuple[OwnerLease, ...]:
        """Return the leases of this principal's owners. An admin gets those in `namespace`, or all if it is None."""
        seen = namespace if self._scope is Scope.ADMIN else self._namespace
        return tuple(map(self._shown_lease, await self._store.leases(seen)))

    async def end_lease(self, owner: str) -> OwnerLease:
        """End the lease of an owner, which deletes the owner's states, and return the lease.

        The owner is one of this principal's. An admin may also name an owner of another API key, as `ann/owner`.
        """
        own = full_name(self._namespace, owner)
        if self._scope is Scope.ADMIN and not any(lease.owner == own for lease in await self._store.leases()):
            own = owner
        return self._shown_lease(await self._store.end_lease(own))

    def lock(self, key: uuid.UUID) -> AbstractAsyncContextManager[None]:
        return self._store.lock(key)

    async def _find(self, name_or_id: str) -> NamedState | None:
        """Return the state with this name or id under its full name, or None if this principal sees no such state.

        The principal's own states come before shared ones.
        """
        for name in (full_name(self._namespace, name_or_id), name_or_id):
            found = await self._store.find(name)
            if found is not None and self._sees(found):
                return found
        return None

    async def _require(self, name_or_id: str) -> NamedState:
        found = await self._find(name_or_id)
        if found is None:
            raise await self._store.missing(name_or_id, self._namespace)
        return found

    async def _require_changeable(self, name_or_id: str) -> NamedState:
        held = await self._require(name_or_id)
        check_changeable(self._shown(held), "state")
        return held

    async def _place(self, name: str, retention: Retention) -> str:
        """Check the name of a new state, and return it with its namespace. Raises the errors of `_check_new`."""
        await self._check_new(name, retention)
        return full_name(self._namespace_of(retention), name)

    async def _check_new(self, name: str, retention: Retention) -> None:
        """Check that the principal may make a new state called `name`.

        Raises ForbiddenError if its scope does not allow that, and InvalidRequestError if the name is not plain, or is
        that of a shared state.
        """
        needed = Scope.ADMIN if retention.shared else Scope.MANAGE
        if needed not in INCLUDED[self._scope]:
            what = "shared" if retention.shared else "kept"
            raise ForbiddenError(
                f"states can't be {what} with the scope {self._scope.value!r}; that needs {needed.value!r}"
            )
        check_new_name(name, "name")
        if self._namespace and (shared := await self._store.find(name)) is not None:
            raise name_taken(shared, "name")

    def _namespace_of(self, retention: Retention) -> str:
        return "" if retention.shared else self._namespace

    def _owned(self, retention: Retention) -> Retention:
        return _owned(retention, self._namespace_of(retention))

    def _sees(self, held: NamedState) -> bool:
        return self._scope is Scope.ADMIN or held.namespace in ("", self._namespace)

    def _shown_lease(self, lease: OwnerLease) -> OwnerLease:
        names = tuple(_plain(name, self._namespace) for name in lease.names)
        return replace(lease, owner=_plain(lease.owner, self._namespace), names=names)

    def _shown(self, held: NamedState) -> NamedState:
        """Return a state as this principal sees it: with its plain name, and read-only unless it may change the state.

        An admin sees the states of other principals unchanged.
        """
        mine = held.namespace == self._namespace and Scope.MANAGE in INCLUDED[self._scope]
        read_only = held.read_only or not (mine or self._scope is Scope.ADMIN)
        if held.namespace not in ("", self._namespace):
            return held  # an admin's view of another's
        owner = None if held.owner is None else split_name(held.owner)[1]
        return replace(held, name=held.plain_name, owner=owner, read_only=read_only)


def _plain(name: str, namespace: str) -> str:
    """Return the `name` of a state or an owner without its namespace if that is `namespace`, else unchanged."""
    return split_name(name)[1] if split_name(name)[0] == namespace else name


def _owned(retention: Retention, namespace: str) -> Retention:
    """Return a copy of `retention` that has the owner's full name, with the namespace, in place of the plain name."""
    if retention.owner is None:
        return retention
    check_name(retention.owner, "owner")
    return replace(retention, owner=full_name(namespace, retention.owner))
