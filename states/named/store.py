"""Named states as clients of an engine reach them, wherever they are kept."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from rnn_engine.errors import NotFoundError
from states.files.reading import StateForm
from states.frozen import FrozenState
from states.named.entry import NamedState, OwnerLease, Retention
from states.named.registry import KeyedLocks, RegistryUsage, StateRegistry


@dataclass(frozen=True, slots=True)
class StateListing:
    """All named states at one moment."""

    entries: tuple[NamedState, ...]  # in the order in which the names were entered
    default: str | None  # the name of the default state
    num_bytes: int  # of all states, or of those in the namespace that was asked for; copies share theirs
    capacity: int  # bytes that they may take


class StateStore(Protocol):
    """Named states, shared by all who use an engine. For one event loop, which no method blocks.

    What is given out is immutable and outlives its deletion. To use a state renews the lease of its owner. Its
    arrays may be read where `get`, `default`, `put` or `compare_and_set` gave it.
    """

    async def get(self, name_or_id: str) -> NamedState:
        """Return the state of this id or, else, of this name, and renew its owner's lease.

        Raises NotFoundError, which lists the names and says what became of this one.
        """
        ...

    async def find(self, name_or_id: str) -> NamedState | None:
        """Return the state of this id or, else, of this name, if there is one. To look at it is not to use it."""
        ...

    async def missing(self, name_or_id: str, namespace: str) -> NotFoundError:
        """Return the error for a name that is not in a namespace nor shared; it lists no other names."""
        ...

    async def list(self, namespace: str | None = None) -> StateListing:
        """Return all states, or those of a namespace. To look at them is not to use them."""
        ...

    def usage(self) -> RegistryUsage:
        """Return how many states there are, and how much room they take."""
        ...

    async def default(self) -> NamedState | None:
        """Return the state that requests start from which name none; None is the fill values."""
        ...

    async def check_place(self, name: str, retention: Retention, num_bytes: int) -> None:
        """Raise what `put` would raise at this moment for a state of this size. Reserves nothing."""
        ...

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
        """Keep a state under a free name. `key` is the id that it gets if that is free.

        Raises InvalidRequestError for a name that can't be had, OverloadedError where there is no room, StorageError
        where a persistent state can't be written; then all is as it was.
        """
        ...

    async def compare_and_set(self, old: NamedState, frozen: FrozenState, *, source: str) -> NamedState:
        """Replace the values of a state if it still has the version of `old`. Name and id stay.

        Raises NotFoundError where it was deleted or changed, InvalidRequestError where it is read-only, OverloadedError
        where there is no room, StorageError where it can't be written.
        """
        ...

    async def fork(self, name_or_id: str, names: Sequence[str], retention: Retention) -> tuple[NamedState, ...]:
        """Keep a state under more names, all of them or none. Raises what `get` and `put` raise."""
        ...

    async def move(self, name_or_id: str, name: str, retention: Retention) -> NamedState:
        """Give a state another name, another owner, or both, in one step.

        Raises what `get` and `put` raise, and InvalidRequestError where it is read-only.
        """
        ...

    async def delete(self, name_or_id: str) -> NamedState:
        """Delete a state. Sequences that run from it go on.

        Raises NotFoundError, InvalidRequestError where it is read-only, StorageError where its file can't be deleted;
        then all is as it was.
        """
        ...

    async def leases(self, namespace: str | None = None) -> tuple[OwnerLease, ...]:
        """Return all leases, or those in a namespace, the newest first. To look at them is not to use them."""
        ...

    async def end_lease(self, owner: str) -> OwnerLease:
        """Remove all states of an owner; sequences that run from them go on. Raises NotFoundError."""
        ...

    def lock(self, key: uuid.UUID) -> AbstractAsyncContextManager[None]:
        """Hold the lock of a state's id while the block runs, so that those who run the model to change it take turns.

        It holds for one engine; `compare_and_set` finds changes by others.
        """
        ...


class LocalStateStore:
    """A `StateStore` over a registry in this process. Writes to the disk on other threads."""

    def __init__(self, registry: StateRegistry) -> None:
        self._registry = registry
        self._locks = KeyedLocks()

    async def get(self, name_or_id: str) -> NamedState:
        return self._shown(self._registry.get(name_or_id))

    async def find(self, name_or_id: str) -> NamedState | None:
        found = self._registry.find(name_or_id)
        return None if found is None else self._shown(found)

    async def missing(self, name_or_id: str, namespace: str) -> NotFoundError:
        return self._registry.missing(name_or_id, namespace)

    async def list(self, namespace: str | None = None) -> StateListing:
        registry = self._registry
        usage, default = registry.usage(), registry.default
        used, capacity = registry.room_of(namespace) if namespace else (usage.num_bytes, usage.capacity)
        entries = tuple(map(self._shown, registry.entries(namespace)))
        return StateListing(entries, None if default is None else default.name, used, capacity)

    def usage(self) -> RegistryUsage:
        return self._registry.usage()

    async def default(self) -> NamedState | None:
        default = self._registry.default
        return None if default is None else self._shown(default)

    async def check_place(self, name: str, retention: Retention, num_bytes: int) -> None:
        self._registry.check_place(name, retention, num_bytes)

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
        put = self._registry.put
        return self._shown(await asyncio.to_thread(put, name, frozen, retention, source=source, form=form, key=key))

    async def compare_and_set(self, old: NamedState, frozen: FrozenState, *, source: str) -> NamedState:
        return self._shown(await asyncio.to_thread(self._registry.compare_and_set, old, frozen, source=source))

    async def fork(self, name_or_id: str, names: Sequence[str], retention: Retention) -> tuple[NamedState, ...]:
        return tuple(map(self._shown, await asyncio.to_thread(self._registry.fork, name_or_id, names, retention)))

    async def move(self, name_or_id: str, name: str, retention: Retention) -> NamedState:
        return self._shown(await asyncio.to_thread(self._registry.move, name_or_id, name, retention))

    async def delete(self, name_or_id: str) -> NamedState:
        return await asyncio.to_thread(self._registry.delete, name_or_id)

    async def leases(self, namespace: str | None = None) -> tuple[OwnerLease, ...]:
        return self._registry.leases(namespace)

    async def end_lease(self, owner: str) -> OwnerLease:
        return self._registry.end_lease(owner)

    def lock(self, key: uuid.UUID) -> AbstractAsyncContextManager[None]:
        return self._locks.hold(str(key))

    def _shown(self, named: NamedState) -> NamedState:
        return replace(named, expires_in=self._registry.seconds_left(named))
