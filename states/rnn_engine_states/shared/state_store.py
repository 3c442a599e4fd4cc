"""`SharedStateStore`, the named states that several servers share. Each server sees the others' changes at once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from rnn_engine.errors import NotFoundError, RnnEngineError, StorageError, UnavailableError
from rnn_engine_states.files.reading import StateForm
from rnn_engine_states.frozen import FrozenState
from rnn_engine_states.named.entry import NamedState, OwnerLease, Retention, check_changeable
from rnn_engine_states.named.quota import Quota
from rnn_engine_states.named.store import DEFAULT_MAX_NAMES, KeyedLocks, LocalStateStore
from rnn_engine_states.named.table import NamedStateTable, StateListing, StateUsage, check_names
from rnn_engine_states.shared.checkpoints import SharedValues
from rnn_engine_states.shared.client import StoreClient
from rnn_engine_states.shared.entries import UnreadState
from rnn_engine_states.shared.names import Commit, SharedNames
from rnn_engine_states.shared.replica import StoreReplica

T = TypeVar("T")

MOST_TRIES = 20  # of an operation that changes by others interrupt


class SharedStateStore:
    """A `StateStore` whose states are in a shared store, which other servers use, too.

    Every call sees the changes that others have made before it. A change is tried again if another server has made one
    meanwhile. Each server has its own operator's states, which need no store. All other operations raise
    UnavailableError while the store does not answer.
    """

    def __init__(
        self,
        own: LocalStateStore,
        client: StoreClient,
        model: str,
        *,
        capacity: int,
        max_names: int = DEFAULT_MAX_NAMES,
        quota: Quota,
        forget: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Share the named states of the model with the fingerprint `model`. `own` has the operator's states.

        `capacity` bounds the bytes of all states, `max_names` their number, and `quota` those of one namespace. Every
        server should have the same bounds. `forget` is called with the digest of a removed state if no name stands for
        a state with this digest any more.
        """
        self._own = own
        self._client = client
        self._names = SharedNames(client, model)
        self._values = SharedValues(client, self._names, own.files, model, capacity)
        self._replica = StoreReplica(own, capacity, max_names, quota, forget, client.note_unreadable)
        self._turn = asyncio.Lock()  # held from a read of the names until the change that follows is made
        self._begun = 0  # reads of the names
        self._last_read = 0  # the number, among those begun, of the last one that succeeded
        self._locks = KeyedLocks()
        self._failed_writes = 0

    async def get(self, name_or_id: str) -> NamedState:
        if await self._own.find(name_or_id) is not None:
            return await self._own.get(name_or_id)
        without: NamedState | None = None
        for _ in range(MOST_TRIES):
            entry = await self._use(name_or_id)
            if entry is None:
                continue
            if (read := await self._with_values(entry)) is not None:
                return read
            if entry == without:
                raise _without_values(name_or_id)
            without = entry
        raise _busy()

    async def find(self, name_or_id: str) -> NamedState | None:
        own = await self._own.find(name_or_id)
        return own if own is not None else await self._ask(partial(_found, name_or_id=name_or_id))

    async def missing(self, name_or_id: str, namespace: str) -> NotFoundError:
        return await self._ask(lambda table: table.missing(name_or_id, namespace))

    async def list(self, namespace: str | None = None) -> StateListing:
        return await self._ask(lambda table: table.listing(namespace))

    def usage(self) -> StateUsage:
        """Return the numbers of states, leases and bytes at the last read of the names from the store."""
        return self._replica.table.usage(self._failed_writes)

    async def default(self) -> NamedState | None:
        return await self._own.default()

    async def check_place(self, name: str, retention: Retention, num_bytes: int) -> None:
        await self._ask(lambda table: table.check_place(name, retention, num_bytes))

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
        await self.check_place(name, retention, frozen.num_bytes)  # before its values are sent

        def enter(table: NamedStateTable, unread: UnreadState) -> NamedState:
            return table.shown(table.put(name, unread, retention, source=source, form=form, key=key))

        return replace(await self._change_with(frozen, enter), frozen=frozen)

    async def compare_and_set(self, old: NamedState, frozen: FrozenState, *, source: str) -> NamedState:
        check_changeable(old, "state")

        def swap(table: NamedStateTable, unread: UnreadState) -> NamedState:
            return table.shown(table.compare_and_set(old, unread, source)[1])

        return replace(await self._change_with(frozen, swap), frozen=frozen)

    async def fork(self, name_or_id: str, names: Sequence[str], retention: Retention) -> tuple[NamedState, ...]:
        check_names(names)
        own = await self._own.find(name_or_id)
        if own is None:
            return await self._change(
                lambda table: tuple(map(table.shown, table.fork(name_or_id, names, retention))),
                partial(self._put_held_values, name_or_id),
            )

        def copy(table: NamedStateTable, unread: UnreadState) -> tuple[NamedState, ...]:
            return tuple(map(table.shown, table.copy(replace(own, frozen=unread), names, retention)))

        return await self._change_with(own.frozen, copy)

    async def move(self, name_or_id: str, name: str, retention: Retention) -> NamedState:
        return await self._change(
            lambda table: table.shown(table.move(name_or_id, name, retention)[1]),
            partial(self._put_held_values, name_or_id),
        )

    async def delete(self, name_or_id: str) -> NamedState:
        return await self._change(lambda table: table.delete(name_or_id))

    async def leases(self, namespace: str | None = None) -> tuple[OwnerLease, ...]:
        return await self._ask(lambda table: tuple(table.leases_of(namespace)))

    async def end_lease(self, owner: str) -> OwnerLease:
        return await self._change(lambda table: table.end_lease(owner))

    def lock(self, key: uuid.UUID) -> AbstractAsyncContextManager[None]:
        return self._locks.hold(str(key))

    async def _use(self, name_or_id: str) -> NamedState | None:
        """Return a named state without its arrays and renew its owner's lease.

        Return None if the lease has just ended.
        """
        async with self._names_now() as table:
            entry = table.get(name_or_id)
            if entry.owner is None:
                return entry
            lasts = await self._run(self._names.use(entry.owner))
            lease = table.leases.find(entry.owner)
            if not lasts or lease is None:
                self._replica.lose_track()  # the store has another lease than the copy
                return None
            return replace(entry, expires_in=lease.ttl)

    async def _with_values(self, entry: NamedState) -> NamedState | None:
        """Return a named state with its arrays, or None if the shared store lacks them.

        The store may lack them because the state was changed.
        """
        assert isinstance(entry.frozen, UnreadState), "the operator's states are found before"
        frozen = await self._values.get(entry.frozen)
        return None if frozen is None else replace(entry, frozen=frozen)

    async def _ask(self, question: Callable[[NamedStateTable], T]) -> T:
        """Call `question` with the current table of named states, and return its result."""
        async with self._names_now() as table:
            return question(table)

    async def _change_with(self, frozen: FrozenState, action: Callable[[NamedStateTable, UnreadState], T]) -> T:
        """Write the arrays of `frozen` to the store, then change the named states by `action`.

        `action` gets an `UnreadState`.
        """
        unread = await self._put_values(frozen)
        return await self._change(
            lambda table: action(table, self._replica.share(unread)), partial(self._put_values, frozen)
        )

    async def _put_values(self, frozen: FrozenState) -> UnreadState:
        try:
            return await self._values.put(frozen)
        except StorageError:
            self._failed_writes += 1
            raise

    async def _put_held_values(self, name_or_id: str) -> None:
        """Write a state's arrays from memory to the shared store again, because the store has lost them.

        Raises NotFoundError if they are not in this server's memory.
        """
        entry = await self.find(name_or_id)
        if entry is None:  # it was deleted meanwhile, which the change itself will report
            return
        assert isinstance(entry.frozen, UnreadState), "the operator's states need no store"
        held = self._values.held(entry.frozen)
        if held is None:
            raise _without_values(name_or_id)
        await self._put_values(held)

    async def _change(
        self, action: Callable[[NamedStateTable], T], put_again: Callable[[], Awaitable[object]] | None = None
    ) -> T:
        """Change the current named states by `action`, and return its result.

        Try again if another server changed them first. `put_again` writes the values that the change needs if the store
        does not have them, or raises an error. It may be absent only if the change needs none.
        """
        for _ in range(MOST_TRIES):
            async with self._names_now() as table:
                try:
                    result = action(table)
                except RnnEngineError:
                    await self._undo()
                    raise
                except BaseException:
                    self._replica.lose_track()
                    raise
                outcome = await self._commit()
            if outcome is Commit.DONE:
                return result
            if outcome is Commit.MISSING:
                assert put_again is not None, "the change needs no values"
                await put_again()
        raise _busy()

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
        """Update the server's copy of the named states from the store, and remove expired leases and their states."""
        self._begun += 1
        self._replica.take_in(await self._run(self._names.read(self._replica.revision)))
        await self._commit()
        self._last_read = self._begun

    async def _undo(self) -> None:
        """Discard a local change of the named states that failed before it was sent to the store.

        If only leases were renewed, send the renewals to the store instead.
        """
        if self._replica.table.changed:
            self._replica.lose_track()
        else:
            await self._commit()

    async def _commit(self) -> Commit:
        """Send local changes of the named states to the store, if there are any, and return the outcome."""
        pending = self._replica.pending()
        if pending is None:
            return Commit.DONE
        known = self._replica.revision
        self._replica.lose_track()  # until the outcome of the change is known
        outcome, revision = await self._run(
            self._names.change(known, pending.last_version, pending.change, pending.needed, pending.unneeded)
        )
        if outcome is Commit.DONE:
            self._replica.note_committed(revision)
        return outcome

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._client.submit(coroutine))


def _found(table: NamedStateTable, name_or_id: str) -> NamedState | None:
    entry = table.find(name_or_id)
    return None if entry is None else table.shown(entry)


def _without_values(name_or_id: str) -> NotFoundError:
    return NotFoundError(f"state {name_or_id!r} is gone: its values in the store are missing or damaged")


def _busy() -> UnavailableError:
    return UnavailableError("other servers change the states in the store too often; try again", 1.0)
