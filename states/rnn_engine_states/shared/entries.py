"""The texts of a shared store: named states without their arrays, leases and changes, in JSON.

Other servers write to the store, and its memory may fail. So each text is checked when it is read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Self, TypeAlias

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from rnn_engine.errors import InvalidRequestError, StateError, StorageError
from rnn_engine.types import F32, InitialState
from rnn_engine_states.files.reading import StateForm
from rnn_engine_states.frozen import FrozenState
from rnn_engine_states.named.entry import NamedState, check_full_name
from rnn_engine_states.named.quota import MAX_TTL

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

# The texts of named states, leases and changes.


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
