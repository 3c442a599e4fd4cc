"""The named states in a shared store: their entries, arrays and leases, and a log of the most recent changes.

A change is a compare-and-set of all names together: it is made only if they have not changed since the server last read
them. Each server has a copy of the names, and updates it before every operation. All times are by the store's clock.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from rnn_engine.errors import StateError, StorageError
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.files.full import parse_full_state
from rnn_engine_states.frozen import FrozenState, freeze_state
from rnn_engine_states.shared.client import StoreClient, lua
from rnn_engine_states.shared.entries import Change, UnreadState, ValueKey, key_of
from rnn_engine_states.shared.keys import space_of

MOST_CHANGES = 1000  # that are remembered; a server that has read none of them reads all names again

PROVISIONAL_SECONDS = 3600  # after which values expire if no name uses them yet

_READ = lua("time", "read_names")
_CHANGE = f"#!lua flags=allow-oom\n{lua('time', 'change_names')}"  # also while memory is full: it may free memory
_USE = lua("time", "use_lease")
_RENEW_VALUE = lua("renew_value")

_NO_ID = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True)
class Revision:
    """The identity of one version of all named states in a shared store. Each change makes a new revision."""

    mark: bytes = b""  # its random id; empty if no revision is known
    number: int = 0
    read_at: float = 0.0  # by the store's clock


@dataclass(frozen=True, slots=True)
class NamesRead:
    """The result of reading the named states in a shared store: the changes since a known revision, or all states.

    All states are a single change. Texts and keys in the result have not been checked.
    """

    revision: Revision
    last_version: int
    complete: bool  # all names; else `changes` are to be applied to the known revision
    changes: Sequence[Change]  # one if complete
    used: Mapping[str, float]  # owner -> time of the last use of its lease; all, or those used since


@dataclass(frozen=True, slots=True)
class Pending:
    """The changes of a server's copy of the named states that are still to be sent to the shared store."""

    change: Change
    last_version: int
    needed: Sequence[ValueKey]  # values of the entries that were changed
    unneeded: Sequence[ValueKey]  # values that no name uses any more


class Commit(Enum):
    """The outcome of an attempt to change the named states in a shared store."""

    DONE = "done"
    CONFLICT = "conflict"  # another server has made a change
    MISSING = "missing"  # values that it needs are not in the store


class SharedNames:
    """A model's named states in the store, on the client's thread. Raises as `StoreClient.run` does."""

    def __init__(self, client: StoreClient, model: str) -> None:
        """Access, by `client`, the named states in the shared store of the model with the fingerprint `model`."""
        self._client = client
        self._model = model
        self._keys = [f"{space_of(model)}:names:{part}" for part in ("head", "entries", "leases", "used", "changes")]

    async def read(self, known: Revision) -> NamesRead:
        """Return the changes since `known`, or all states if those are no longer logged or can't be parsed."""
        arguments = (known.mark, known.number, repr(known.read_at))
        now, mark, number, version, complete, first, leases, used = await self._client.script(
            self._client.reading, _READ, self._keys, *arguments
        )
        revision = Revision(mark, int(number), float(now))
        if complete:
            changes = [Change.model_construct(entries=dict(_pairs(first)), leases=dict(_pairs(leases)))]
        else:
            try:
                changes = [Change.decode(text[text.find(b"{") :], "a change") for text in first]  # after their marks
            except StorageError as error:
                self._client.note_unreadable("a change of the state names", error)
                return await self.read(Revision())
        when = {owner: float(score) for owner, score in _pairs(used)}
        return NamesRead(revision, int(version), bool(complete), changes, when)

    async def change(self, known: Revision, pending: Pending) -> tuple[Commit, Revision]:
        """Apply changes to the named states if these still have the revision `known`.

        Return the outcome and the new revision. Arrays that are needed must be in the store, and no longer expire.
        """
        follows = Revision(secrets.token_hex(8).encode(), known.number + 1, known.read_at)
        keys = [*self._keys, *(_value_key(self._model, value) for value in (*pending.needed, *pending.unneeded))]
        change, num_needed = pending.change.encode(), len(pending.needed)
        arguments = (known.mark, known.number, follows.mark, pending.last_version, change, num_needed, MOST_CHANGES)
        answer = await self._client.script(self._client.writing, _CHANGE, keys, *arguments)
        return Commit(answer.decode()), follows

    async def use(self, owner: str) -> bool:
        """Restart the time to live of an owner's lease. Return False if the owner has no lease or it has expired."""
        return bool(await self._client.script(self._client.reading, _USE, self._keys[2:4], owner))


class SharedValues:
    """Named states' arrays in the store, some also in memory. For one event loop; no method blocks."""

    def __init__(self, client: StoreClient, files: StateFiles, model: str, capacity: int) -> None:
        """Cache at most `capacity` bytes of arrays of the model with the fingerprint `model`."""
        self._client = client
        self._files = files
        self._model = model
        self._capacity = capacity
        self._held: OrderedDict[ValueKey, FrozenState] = OrderedDict()  # the longest unused first
        self._held_bytes = 0
        self._unreadable: set[ValueKey] = set()  # values that the store has, damaged

    async def put(self, frozen: FrozenState) -> None:
        """Write arrays that the store lacks, which expire unused. Raises StorageError or UnavailableError."""
        key = key_of(frozen)
        await self._client.call(self._put(key, frozen))
        self._hold(key, frozen)

    async def get(self, unread: UnreadState) -> FrozenState | None:
        """Return a state with its arrays, or None if they are missing or damaged. Raises UnavailableError."""
        key = key_of(unread)
        if (held := self.held(key)) is not None:
            return held
        frozen = await self._client.call(self._get(key, unread))
        if frozen is not None:
            self._hold(key, frozen)
        return frozen

    def held(self, key: ValueKey) -> FrozenState | None:
        """Return the state with the arrays `key` if they are in memory, else None. Marks them as recently used."""
        if key in self._held:
            self._held.move_to_end(key)
        return self._held.get(key)

    async def _put(self, key: ValueKey, frozen: FrozenState) -> None:
        client, name = self._client, _value_key(self._model, key)
        if key in self._unreadable:
            await client.command(client.writing, "UNLINK", name)
            self._unreadable.discard(key)
        if not await client.script(client.reading, _RENEW_VALUE, [name], PROVISIONAL_SECONDS):
            parts = self._files.export("full", "", _NO_ID, frozen)
            data = await asyncio.to_thread(b"".join, parts)
            await client.command(client.writing, "SET", name, data, "EX", PROVISIONAL_SECONDS, "NX")
            client.count_bytes(written=len(data))

    async def _get(self, key: ValueKey, unread: UnreadState) -> FrozenState | None:
        data: bytes | None = await self._client.command(self._client.reading, "GET", _value_key(self._model, key))
        if data is None:
            return None
        self._client.count_bytes(read=len(data))
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
            lora=saved.lora,
        )
        if frozen.digest != unread.digest:
            raise StateError(f"{source} is damaged: its values do not match its digest")
        return frozen

    def _hold(self, key: ValueKey, frozen: FrozenState) -> None:
        if key in self._held or frozen.num_bytes > self._capacity:
            return
        self._held[key] = frozen
        self._held_bytes += frozen.num_bytes
        while self._held_bytes > self._capacity:
            self._held_bytes -= self._held.popitem(last=False)[1].num_bytes


def _value_key(model: str, value: ValueKey) -> str:
    digest, has_logits = value
    return f"{space_of(model)}:value:{digest}:{int(has_logits)}"


def _pairs(flat: Sequence[bytes]) -> list[tuple[str, str]]:
    texts = [item.decode(errors="surrogateescape") for item in flat]
    return list(zip(texts[::2], texts[1::2], strict=True))
