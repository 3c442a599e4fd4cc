"""The engine as one principal reaches it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from rnn_engine.health import Health
from rnn_engine.interface import EngineInfo, EngineLike, EngineStats
from rnn_engine.requests import Event, GenerateRequest
from rnn_engine.telemetry import EngineCounters
from server.doors.scopes import Principal
from server.doors.states import OwnStates
from states.cache.counters import CacheStats
from states.cache.snapshot import SnapshotNode
from states.files.exchange import StateFiles
from states.named.store import StateStore


class OwnEngine:
    """An `EngineLike` with the states of a principal alone.

    Routes have no other way to the engine, so that none has to ask what belongs to whom.
    """

    def __init__(self, engine: EngineLike, principal: Principal) -> None:
        self._engine = engine
        self._states = OwnStates(engine.states, principal)

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

    def counters(self) -> EngineCounters:
        return self._engine.counters()

    def health(self) -> Health:
        return self._engine.health()

    def cache_stats(self) -> CacheStats | None:
        return self._engine.cache_stats()

    async def cache_nodes(self, limit: int) -> tuple[SnapshotNode, ...]:
        return await self._engine.cache_nodes(limit)

    async def drop_cache(self) -> int:
        return await self._engine.drop_cache()

    def tokenize(self, text: str) -> list[int]:
        return self._engine.tokenize(text)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        return self._engine.detokenize(tokens)

    def check_queue(self) -> None:
        self._engine.check_queue()

    def generate(self, request: GenerateRequest, *, wait_for_room: bool = False) -> AsyncGenerator[Event, None]:
        return self._engine.generate(request, wait_for_room=wait_for_room)

    async def close(self) -> None:
        await self._engine.close()
