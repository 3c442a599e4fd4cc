"""The values of named states in a shared store, as state files, and those that were used last in memory."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict

from rnn_engine.errors import StateError
from states.files.exchange import StateFiles
from states.files.full import parse_full_state
from states.frozen import FrozenState, freeze_state
from states.shared.client import StoreClient
from states.shared.entries import ValueKey, key_of
from states.shared.names import SharedNames
from states.shared.unread import UnreadState

_NO_ID = uuid.UUID(int=0)


class SharedValues:
    """Values by what tells them apart. For one event loop, which no method blocks."""

    def __init__(self, client: StoreClient, names: SharedNames, files: StateFiles, model: str, capacity: int) -> None:
        """At most `capacity` bytes of values stay in memory."""
        self._client = client
        self._names = names
        self._files = files
        self._model = model
        self._capacity = capacity
        self._held: OrderedDict[ValueKey, FrozenState] = OrderedDict()  # the longest unused first
        self._held_bytes = 0
        self._unreadable: set[ValueKey] = set()  # that the store was found to have

    async def put(self, frozen: FrozenState) -> UnreadState:
        """Bring values to the store, where they stay for a while, and return what stands for them.

        Raises StorageError where the store has no room, UnavailableError where it does not answer.
        """
        unread = UnreadState.of(frozen)
        await asyncio.wrap_future(self._client.submit(self._put(key_of(unread), frozen)))
        self._hold(key_of(unread), frozen)
        return unread

    async def get(self, unread: UnreadState) -> FrozenState | None:
        """Return values; None where the store has them no more, or damaged.

        Raises UnavailableError where the store does not answer.
        """
        key = key_of(unread)
        if (held := self._held.get(key)) is not None:
            self._held.move_to_end(key)
            return held
        frozen = await asyncio.wrap_future(self._client.submit(self._get(key, unread)))
        if frozen is not None:
            self._hold(key, frozen)
        return frozen

    async def _put(self, key: ValueKey, frozen: FrozenState) -> None:
        if key in self._unreadable:
            await self._names.delete_value(key)
            self._unreadable.discard(key)
        if not await self._names.has_value(key):
            parts = self._files.export("full", "", _NO_ID, frozen)
            await self._names.put_value(key, await asyncio.to_thread(b"".join, parts))

    async def _get(self, key: ValueKey, unread: UnreadState) -> FrozenState | None:
        data = await self._names.get_value(key)
        if data is None:
            return None
        try:
            return await asyncio.to_thread(self._parse, data, unread)
        except StateError as error:
            if key not in self._unreadable:
                self._unreadable.add(key)
                self._client.note_unreadable("the values of a named state", error)
            return None

    def _parse(self, data: bytes, unread: UnreadState) -> FrozenState:
        source, shape = "a named state in the store", self._files.shape
        saved = parse_full_state(data, source, shape, self._model)
        payload, origin = saved.payload, saved.origin
        frozen = freeze_state(
            payload.expand(),
            shape,
            source,
            logits=payload.logits,
            num_tokens=origin.num_tokens,
            last_tokens=origin.last_tokens,
        )
        if frozen.digest != unread.digest:
            raise StateError(f"{source} is damaged: it has other values than its name says")
        return frozen

    def _hold(self, key: ValueKey, frozen: FrozenState) -> None:
        if key in self._held or frozen.num_bytes > self._capacity:
            return
        self._held[key] = frozen
        self._held_bytes += frozen.num_bytes
        while self._held_bytes > self._capacity:
            self._held_bytes -= self._held.popitem(last=False)[1].num_bytes
