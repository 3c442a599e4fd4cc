"""The engine as one principal reaches it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from rnn_engine.health import Health
from rnn_engine.interface import EngineInfo, EngineLike, EngineStats
from rnn_engine.requests import ANONYMOUS, Client, Event, GenerateRequest
from rnn_engine.telemetry import EngineCounters, SlotUse
from server.doors.rates import Spending
from server.doors.scopes import Principal, Scope
from server.doors.states import OwnStates
from states.cache.browse import CacheTree, TreeQuery
from states.cache.counters import CacheStats
from states.cache.snapshot import SnapshotNode
from states.files.exchange import StateFiles
from states.named.store import StateStore


class OwnEngine:
    """An `EngineLike` with the states of a principal, and with its part of the cache.

    A prompt that another client had before is quicker, and `cached_tokens` tells of it. So what is kept is kept for
    each key by itself, unless the operator lets all share it: else one could guess what others have asked.

    Routes have no other way to the engine, so that none has to ask what belongs to whom.
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
    ) -> None:
        """`client` asks, whoever a method's caller says, and its quota is `spending`; None is without bounds.

        `cache_salt` divides the principal's part of the cache, `share_cache` lets all principals have one.
        """
        self._engine = engine
        self._client = client
        self._spending = spending
        self._states = OwnStates(engine.states, principal)
        self._sees_all = principal.scope is Scope.ADMIN
        self._own_scope = None if share_cache else principal.name
        self._cache_scope = _scope(self._own_scope or "", cache_salt)

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def states(self) -> StateStore:
        return self._states

    @property
    def state_files(self) -> StateFiles:
        return self._engine.state_files

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def slot_uses(self) -> Sequence[SlotUse]:
        """Return what slots are used for; whose a request is, is told of this principal's own, or to an admin."""
        return [self._shown(use) for use in self._engine.slot_uses()]

    def counters(self) -> EngineCounters:
        return self._engine.counters()

    def health(self) -> Health:
        return self._engine.health()

    def cache_stats(self) -> CacheStats | None:
        return self._engine.cache_stats()

    async def cache_nodes(self, limit: int, scope: str | None = None) -> tuple[SnapshotNode, ...]:
        """Return the kept positions that this principal may see: its own, or all.

        Whose a position is, is not known where all share the cache, so only an admin sees any then.
        """
        if self._sees_all:
            return await self._engine.cache_nodes(limit, scope)
        return () if self._own_scope is None else await self._engine.cache_nodes(limit, self._own_scope)

    async def cache_tree(self, query: TreeQuery) -> CacheTree:
        """Return kept positions of all principals, for routes that want the scope `admin`, as the next two."""
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

    async def close(self) -> None:
        await self._engine.close()

    def _shown(self, use: SlotUse) -> SlotUse:
        owner = use.scope.partition("/")[0]
        return replace(use, scope=owner if self._sees_all or owner == self._own_scope else "")


def _scope(namespace: str, salt: str | None) -> str:
    """Return a scope of the cache. A salt goes into files by its hash alone."""
    if salt is None:
        return namespace
    return f"{namespace}/{hashlib.blake2b(salt.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"
