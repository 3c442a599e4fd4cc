"""The named states in a shared store: their entries, arrays and leases, and a log of the most recent changes.

A change is a compare-and-set of all names together: it is made only if they have not changed since the server last read
them. Each server has a copy of the names, and updates it before every operation. All times are by the store's clock.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Self, TypeAlias

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from rnn_engine.errors import InvalidRequestError, StateError, StorageError
from rnn_engine.types import F32, InitialState
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.files.full import parse_full_state
from rnn_engine_states.files.reading import StateForm
from rnn_engine_states.frozen import FrozenState, freeze_state
from rnn_engine_states.named.entry import NamedState, check_full_name
from rnn_engine_states.named.quota import MAX_TTL
from rnn_engine_states.shared.client import StoreClient, lua
from rnn_engine_states.shared.keys import space_of

_LOGITS: F32 = np.zeros(0, np.float32)

ValueKey: TypeAlias = tuple[str, bool]
"""Identifies the values of a named state: their digest, and whether logits are stored with them."""


def key_of(frozen: FrozenState) -> ValueKey:
    """Return the key that identifies a state's arrays: the state's digest, and True if there are logits."""
    return frozen.digest, frozen.logits is not None


@dataclass(frozen=True, slots=True, eq=False)
class UnreadState(FrozenState):
    """The description of a named state whose arrays are in the shared store. Reading the arrays raises StateError."""

    bytes_there: int = field(kw_only=True)

    @classmethod
    def of(cls, frozen: FrozenState) -> UnreadState:
        """Return the description of `frozen` without its arrays."""
        logits = None if frozen.logits is None else _LOGITS
        has_shifts, num_bytes = frozen.has_shifts, frozen.num_bytes
        return cls(
            frozen.digest, _UNREAD, logits, frozen.num_tokens, frozen.last_tokens, has_shifts, bytes_there=num_bytes
        )

    @property
    def for_request(self) -> InitialState:
        raise StateError("the values of a state were not read from the store")

    @property
    def num_bytes(self) -> int:
        return self.bytes_there


class _Unread(Mapping[str, F32]):
    """A stand-in for a state's arrays by name, which raises StateError on any access."""

    def __getitem__(self, name: str) -> F32:
        raise StateError(f"{name} of a state was not read from the store")

    def __iter__(self) -> Iterator[str]:
        raise StateError("the values of a state were not read from the store")

    def __len__(self) -> int:
        raise StateError("the values of a state were not read from the store")


_UNREAD = _Unread()

# The texts of named states without their arrays, leases and changes, in JSON. Other servers write to the store, and its
# memory may fail. So each text is checked when it is read.


def _checked_name(name: str) -> str:
    check_full_name(name, "name")
    return name


_Name: TypeAlias = Annotated[str, AfterValidator(_checked_name)]
_Count: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 53)]  # the store's scripts count with doubles


class _Text(BaseModel):
    """Base class of what is stored as a JSON text. A text may have more fields, which are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    def encode(self) -> str:
        return self.model_dump_json()

    @classmethod
    def decode(cls, text: str | bytes, what: str) -> Self:
        """Parse a JSON text of the shared store, which stands for `what`. Raises StorageError if it is invalid."""
        try:
            return cls.model_validate_json(text)
        except (ValueError, InvalidRequestError) as error:
            reason = str(error)
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise StorageError(f"the store has {what} that can't be parsed: {reason}") from error


class StoredEntry(_Text):
    """A named state in the shared store, without its arrays."""

    id: uuid.UUID
    version: _Count
    name: _Name
    form: StateForm
    source: str
    created: FiniteFloat
    owner: _Name | None
    digest: Annotated[str, Field(pattern=r"^[0-9A-Za-z]+(\+[0-9A-Za-z]+)?$")]  # and, after a plus, its LoRA's
    logits: bool
    num_tokens: _Count | None
    last_tokens: tuple[_Count, ...]
    num_bytes: _Count
    shifts: bool

    @classmethod
    def of(cls, entry: NamedState) -> Self:
        """Return the description of a named state."""
        frozen = entry.frozen
        return cls(
            id=entry.id,
            version=entry.version,
            name=entry.name,
            form=entry.form,
            source=entry.source,
            created=entry.created,
            owner=entry.owner,
            digest=frozen.digest,
            logits=frozen.logits is not None,
            num_tokens=frozen.num_tokens,
            last_tokens=frozen.last_tokens,
            num_bytes=frozen.num_bytes,
            shifts=frozen.has_shifts,
        )

    def named(self, share: Callable[[UnreadState], UnreadState]) -> NamedState:
        """Return the named state. `share` maps its description to the one object that stands for all equal ones."""
        logits, num_bytes = _LOGITS if self.logits else None, self.num_bytes
        unread = UnreadState(
            self.digest, _UNREAD, logits, self.num_tokens, self.last_tokens, self.shifts, bytes_there=num_bytes
        )
        return NamedState(
            self.id, self.version, self.name, self.form, self.source, self.created, self.owner, share(unread)
        )


class StoredLease(_Text):
    """A lease in the shared store, without its owner and the time of its last use, which are stored beside it."""

    number: _Count
    ttl: Annotated[float, Field(gt=0, le=MAX_TTL)]


class Change(_Text):
    """A change of the shared store's named states: the states and leases to set or remove."""

    entries: Mapping[str, str] = {}  # id -> text
    removed: tuple[uuid.UUID, ...] = ()
    leases: Mapping[str, str] = {}  # owner -> text; their times restart now
    ended: tuple[str, ...] = ()  # owners


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
