"""`SharedTable`, the named states that several servers share. Each server sees the others' changes at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from rnn_engine.errors import NotFoundError, RnnEngineError, StorageError, UnavailableError
from rnn_engine_states.frozen import FrozenState
from rnn_engine_states.named.entry import NamedState
from rnn_engine_states.named.local import LocalTable
from rnn_engine_states.named.quota import Quota
from rnn_engine_states.named.store import KeyedLocks
from rnn_engine_states.named.table import NamedStateTable, StateUsage
from rnn_engine_states.shared.client import StoreClient
from rnn_engine_states.shared.entries import UnreadState, ValueKey, key_of
from rnn_engine_states.shared.names import Commit, SharedNames, SharedValues
from rnn_engine_states.shared.replica import StoreReplica

T = TypeVar("T")

MOST_TRIES = 20  # of an operation that changes by others interrupt


class SharedTable:
    """Access to a table of named states in a shared store, which other servers use, too: a `TableAccess`.

    Every call sees the changes that others have made before it. A change is tried again if another server has made one
    meanwhile. Each server has its own operator's states, which need no store. All other operations raise
    UnavailableError while the store does not answer.
    """

    def __init__(
        self,
        own: LocalTable,
        client: StoreClient,
        model: str,
        *,
        capacity: int,
        quota: Quota,
        forget: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Share the named states of the model with the fingerprint `model`. `own` has the operator's states.

        `capacity` bounds the bytes of all states, and `quota` those of one namespace. Every server should have the same
        bounds. `forget` is called with the digest of a removed state if no name stands for
        a state with this digest any more.
        """
        self.locks = KeyedLocks()
        self._own = own
        self._client = client
        self._names = SharedNames(client, model)
        self._values = SharedValues(client, own.files, model, capacity)
        self._replica = StoreReplica(own, capacity, quota, forget, client.note_unreadable)
        self._turn = asyncio.Lock()  # held from a read of the names until the change that follows is made
        self._begun = 0  # reads of the names
        self._last_read = 0  # the number, among those begun, of the last one that succeeded
        self._failed_writes = 0

    async def ask(self, question: Callable[[NamedStateTable], T], first: str = "") -> T:
        with self._own.locked() as own:
            if own.find(first) is not None:
                return question(own)
        async with self._names_now() as table:
            return question(table)

    async def use(self, require: Callable[[NamedStateTable], NamedState], first: str) -> NamedState:
        with self._own.locked() as own:
            if own.find(first) is not None:
                return require(own)
        without: NamedState | None = None
        for _ in range(MOST_TRIES):
            async with self._names_now() as table:
                entry = require(table)
                if entry.owner is not None:
                    lasts = await self._client.call(self._names.use(entry.owner))
                    lease = table.leases.find(entry.owner)
                    if not lasts or lease is None:
                        self._replica.lose_track()  # the store has another lease than the copy
                        continue
                    entry = replace(entry, expires_in=lease.ttl)
            if not isinstance(entry.frozen, UnreadState):
                return entry
            if (frozen := await self._values.get(entry.frozen)) is not None:
                return replace(entry, frozen=frozen)
            if entry == without:  # else it may have been changed meanwhile
                raise _without_values(entry.plain_name)
            without = entry
        raise UnavailableError("other servers change the states in the store too often; try again", 1.0)

    async def change(
        self, action: Callable[[NamedStateTable], T], values: FrozenState | None = None, name: str = ""
    ) -> T:
        if values is not None:
            await self._put_values(values)
        for _ in range(MOST_TRIES):
            async with self._names_now() as table:
                try:
                    result = action(table)
                except RnnEngineError:
                    if self._replica.table.changes():
                        self._replica.lose_track()
                    else:
                        await self._commit()
                    raise
                except BaseException:
                    self._replica.lose_track()
                    raise
                outcome, needed = await self._commit()
            if outcome is Commit.DONE:
                return result
            if outcome is Commit.MISSING:
                await self._put_again(needed, values, name)
        raise UnavailableError("other servers change the states in the store too often; try again", 1.0)

    async def default(self) -> NamedState | None:
        return await self._own.default()

    def usage(self) -> StateUsage:
        """Return the numbers of states, leases and bytes at the last read of the names from the store."""
        return self._replica.table.usage(self._failed_writes)

    async def _put_values(self, frozen: FrozenState) -> None:
        try:
            await self._values.put(frozen)
        except StorageError:
            self._failed_writes += 1
            raise

    async def _put_again(self, needed: Sequence[ValueKey], values: FrozenState | None, name: str) -> None:
        """Write needed arrays that the store has lost again. Raises NotFoundError for `name` if nobody has them."""
        with self._own.locked() as own:
            operators = {key_of(entry.frozen): entry.frozen for entry in own.entries()}
        for key in needed:
            found = values or self._values.held(key) or operators.get(key)
            if found is None:
                raise _without_values(name)
            await self._put_values(found)

    @asynccontextmanager
    async def _names_now(self) -> AsyncIterator[NamedStateTable]:
        """Yield the table of named states for a `with` block, read from the store no earlier than the call.

        No other task changes the table during the block. Tasks that wait for each other share a read, so a slow store
        is asked once for all of them.
        """
        begun = self._begun
        async with self._turn:
            if self._last_read <= begun or not self._replica.is_known:
                await self._read()
            yield self._replica.table

    async def _read(self) -> None:
        self._begun += 1
        self._replica.take_in(await self._client.call(self._names.read(self._replica.revision)))
        await self._commit()
        self._last_read = self._begun

    async def _commit(self) -> tuple[Commit, Sequence[ValueKey]]:
        """Send local changes of the named states to the store, if there are any.

        Return the outcome, and the keys of the arrays that the changed states need.
        """
        pending = self._replica.pending()
        if pending is None:
            return Commit.DONE, ()
        known = self._replica.revision
        self._replica.lose_track()  # until the outcome of the change is known
        outcome, revision = await self._client.call(self._names.change(known, pending))
        if outcome is Commit.DONE:
            self._replica.note_committed(revision)
        return outcome, pending.needed


def _without_values(name: str) -> NotFoundError:
    return NotFoundError(f"state {name!r} is gone: its values in the store are missing or damaged")
