"""Named states, leases and changes of them as texts in a shared store, and the keys under which they lie.

The texts come back from a place that others write to, and whose memory may fail. So whatever is read is checked, and
raises StorageError where it can't be what was written.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

import numpy as np

from rnn_engine.errors import InvalidRequestError, StateError, StorageError
from rnn_engine.types import F32, InitialState
from states.files.reading import StateForm
from states.frozen import FrozenState
from states.named.entry import MAX_TTL, Lease, NamedState, check_full_name
from states.tokens import TOKEN_BYTES

# The names of what is kept in a shared store, and how the prefixes of a prompt are looked for.
#
# A checkpoint has the hash of its tokens, of the root that they follow and of the model, and their number. To find the
# longest one that begins a prompt without asking for each of its lengths, tokens are divided into blocks: for each
# beginning of whole blocks there is a bitmap of the lengths that checkpoints have within the block after it.

BLOCK_TOKENS = 128

PREFIX = "rnn-engine:1"
"""What the names of all that is kept begin with."""
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """The tokens of a path after a beginning of whole blocks, fewer than a block at its end."""

    start: int  # tokens before it
    size: int  # tokens
    lengths_key: str


class PathKeys:
    """The keys along one path of tokens."""

    def __init__(self, model: str, root: str, tokens: bytes) -> None:
        """`model` is the fingerprint of whatever must be equal for a state to be continued; `tokens` are packed."""
        self._space = space_of(model)
        self._tokens = tokens
        self._start = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for text in (model, root):
            self._start.update(f"{len(text)}:{text}".encode())
        self.length = len(tokens) // TOKEN_BYTES

    def blocks(self) -> list[StoredBlock]:
        """All blocks of the path, from its beginning."""
        starts = range(0, self.length, BLOCK_TOKENS)
        digests = self._digests(starts)
        return [
            StoredBlock(start, min(BLOCK_TOKENS, self.length - start), f"{self._space}:lengths:{digest}")
            for start, digest in zip(starts, digests, strict=True)
        ]

    def checkpoints(self, lengths: Sequence[int]) -> list[str]:
        """The keys of checkpoints of these lengths, which ascend."""
        digests = self._digests(lengths)
        return [f"{self._space}:checkpoint:{digest}:{length}" for digest, length in zip(digests, lengths, strict=True)]

    def _digests(self, lengths: Sequence[int]) -> Iterator[str]:
        digest, done = self._start.copy(), 0
        for length in lengths:
            digest.update(self._tokens[done * TOKEN_BYTES : length * TOKEN_BYTES])
            done = length
            yield digest.hexdigest()


def bit_of(length: int) -> int:
    """The bit of a checkpoint's length in the bitmap of its block."""
    return (length - 1) % BLOCK_TOKENS


def lengths_in(block: StoredBlock, bitmap: bytes | None) -> Iterator[int]:
    """The lengths that a bitmap has within a block, ascending. Bit 0 is the highest of the first byte."""
    for bit in range(block.size if bitmap else 0):
        byte = bit // 8
        if bitmap and byte < len(bitmap) and bitmap[byte] & (0x80 >> bit % 8):
            yield block.start + bit + 1


def space_of(model: str) -> str:
    """What the names of all that is kept of a model begin with."""
    return f"{PREFIX}:{hashlib.blake2b(model.encode(), digest_size=8).hexdigest()}"


# A named state whose values lie in the shared store: all that is told of it, without its arrays.

_LOGITS: F32 = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class UnreadState(FrozenState):
    """A state to start from, once its values have been read."""

    bytes_there: int
    shifts_there: bool

    @classmethod
    def of(cls, frozen: FrozenState) -> UnreadState:
        """All of a state but its arrays."""
        has_logits = frozen.logits is not None
        return make_unread(
            frozen.digest, has_logits, frozen.num_tokens, frozen.last_tokens, frozen.num_bytes, frozen.has_shifts
        )

    @property
    def for_request(self) -> InitialState:
        raise StateError("the values of a state were not read from the store")

    @property
    def num_bytes(self) -> int:
        return self.bytes_there

    @property
    def has_shifts(self) -> bool:
        return self.shifts_there


def make_unread(
    digest: str,
    has_logits: bool,
    num_tokens: int | None,
    last_tokens: tuple[int, ...],
    num_bytes: int,
    has_shifts: bool,
) -> UnreadState:
    """A state of which this is known."""
    logits = _LOGITS if has_logits else None
    return UnreadState(digest, _Unread(), logits, num_tokens, last_tokens, num_bytes, has_shifts)


class _Unread(Mapping[str, F32]):
    """Arrays that raise where they are read."""

    def __getitem__(self, name: str) -> F32:
        raise StateError(f"{name} of a state was not read from the store")

    def __iter__(self) -> Iterator[str]:
        raise StateError("the values of a state were not read from the store")

    def __len__(self) -> int:
        raise StateError("the values of a state were not read from the store")


T = TypeVar("T")

ValueKey = tuple[str, bool]
"""What tells the values of named states apart: their digest, and whether logits are with them."""

_FORMS: Mapping[str, StateForm] = {form: form for form in get_args(StateForm)}
_MOST = 1 << 53  # of a whole number that the store's scripts count with


def key_of(frozen: UnreadState) -> ValueKey:
    """What tells a state's values from others."""
    return frozen.digest, frozen.logits is not None


def encode_entry(entry: NamedState) -> str:
    """A named state as a text."""
    frozen = entry.frozen
    return json.dumps(
        {
            "id": str(entry.id),
            "version": entry.version,
            "name": entry.name,
            "form": entry.form,
            "source": entry.source,
            "created": entry.created,
            "owner": entry.owner,
            "digest": frozen.digest,
            "logits": frozen.logits is not None,
            "num_tokens": frozen.num_tokens,
            "last_tokens": frozen.last_tokens,
            "num_bytes": frozen.num_bytes,
            "shifts": frozen.has_shifts,
        }
    )


def decode_entry(key: str, text: str, share: Callable[[UnreadState], UnreadState]) -> NamedState:
    """The named state whose id is `key`; `share` gives the one object that stands for equal values."""
    with _damage_told("a named state"):
        content = json.loads(text)
        name, owner = _field(content, "name", str), content["owner"]
        for full_name in (name,) if owner is None else (name, owner):
            check_full_name(full_name, "name")
        digest, source = _field(content, "digest", str), _field(content, "source", str)
        if not (digest.isascii() and digest.isalnum()):
            raise ValueError(f"digest: {digest!r}")
        source.encode()  # raises for what is no text
        if _field(content, "id", str) != key:
            raise ValueError(f"id: {content['id']!r} at the place of {key!r}")
        num_tokens = None if content["num_tokens"] is None else _count(content, "num_tokens")
        last_tokens = tuple(_whole(token, "last_tokens") for token in _field(content, "last_tokens", list))
        frozen = make_unread(
            digest,
            _field(content, "logits", bool),
            num_tokens,
            last_tokens,
            _count(content, "num_bytes"),
            _field(content, "shifts", bool),
        )
        return NamedState(
            uuid.UUID(key),
            _count(content, "version"),
            name,
            _FORMS[_field(content, "form", str)],
            source,
            _number(content, "created"),
            owner,
            share(frozen),
        )


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease as it is in a store, but for its last use."""

    owner: str
    number: int
    ttl: float


def encode_lease(lease: Lease) -> str:
    """A lease as a text."""
    return json.dumps({"number": lease.number, "ttl": lease.ttl})


def decode_lease(owner: str, text: str) -> StoredLease:
    """The lease of an owner."""
    with _damage_told("a lease"):
        content = json.loads(text)
        check_full_name(owner, "owner")
        ttl = _number(content, "ttl")
        if not 0 < ttl <= MAX_TTL:
            raise ValueError(f"ttl: {ttl!r}")
        return StoredLease(owner, _count(content, "number"), ttl)


@dataclass(frozen=True, slots=True)
class Change:
    """What a change makes of the names."""

    entries: Mapping[str, str] = field(default_factory=dict)  # id -> text
    removed: Sequence[str] = ()  # ids
    leases: Mapping[str, str] = field(default_factory=dict)  # owner -> text; each is used now
    ended: Sequence[str] = ()  # owners


def encode_change(change: Change) -> str:
    """A change as a text."""
    return json.dumps(
        {"entries": change.entries, "removed": change.removed, "leases": change.leases, "ended": change.ended}
    )


def decode_change(marked: bytes) -> Change:
    """The change of a text that comes after a mark. What it says of each name is left undecoded."""
    with _damage_told("a change"):
        text = marked.decode()
        content = json.loads(text[text.index("{") :])
        entries, leases = _field(content, "entries", dict), _field(content, "leases", dict)
        removed, ended = _field(content, "removed", list), _field(content, "ended", list)
        for part in (entries.values(), leases.values(), removed, ended):
            if not all(isinstance(one, str) for one in part):
                raise ValueError("a part of it is no text")
        for key in removed:
            uuid.UUID(key)
        return Change(entries, removed, leases, ended)


@contextmanager
def _damage_told(what: str) -> Iterator[None]:
    """Raise StorageError for whatever a text that was damaged makes its parser raise."""
    try:
        yield
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError, InvalidRequestError) as error:
        raise StorageError(f"the store has {what} that can't be understood: {error!r}") from error


def _field(content: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = content[name]
    if type(value) is not kind:
        raise TypeError(f"{name}: {value!r}")
    return value


def _count(content: Mapping[str, Any], name: str) -> int:
    return _whole(content[name], name)


def _whole(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError(f"{name}: {value!r}")
    return value


def _number(content: Mapping[str, Any], name: str) -> float:
    value = content[name]
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{name}: {value!r}")
    return float(value)
