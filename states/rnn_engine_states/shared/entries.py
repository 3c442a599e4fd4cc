"""The keys and encodings of a shared store: keys of checkpoints, and named states, leases and changes as JSON texts.

Other servers write to the store, and its memory may fail. So decoding checks each text, and raises StorageError if it
can't be what a server wrote.
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
from rnn_engine_states.files.reading import StateForm
from rnn_engine_states.frozen import FrozenState
from rnn_engine_states.named.entry import NamedState, check_full_name
from rnn_engine_states.named.leases import Lease
from rnn_engine_states.named.quota import MAX_TTL
from rnn_engine_states.tokens import TOKEN_BYTES

# The keys of checkpoints in a shared store, and how the store finds the longest checkpoint of a prompt.
#
# The key of a checkpoint has a hash of the model, the root and the tokens, and the number of tokens. Tokens are divided
# into blocks, so that the longest checkpoint of a prompt is found without asking for each possible length. For each
# prefix of whole blocks there is a bitmap of the lengths of checkpoints within the next block.

BLOCK_TOKENS = 128

PREFIX = "rnn-engine:1"
"""The prefix of every key in the store."""
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block of a path's tokens, and the shared store's key of the bitmap of checkpoints in this block.

    The path's last block may be shorter than `BLOCK_TOKENS`.
    """

    start: int  # tokens before it
    size: int  # tokens
    lengths_key: str


class PathKeys:
    """Computes the shared store's keys of the checkpoints and bitmaps along one path of tokens."""

    def __init__(self, model: str, root: str, tokens: bytes) -> None:
        """Compute the shared store's keys for the path of packed `tokens` under `root`.

        `model` is the fingerprint of all settings that must be equal for a state to be continued.
        """
        self._space = space_of(model)
        self.root = root
        self.tokens = tokens
        self._start = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for text in (model, root):
            self._start.update(f"{len(text)}:{text}".encode())
        self.length = len(tokens) // TOKEN_BYTES

    def blocks(self) -> list[StoredBlock]:
        """Return all blocks of the token path with their keys, in order."""
        starts = range(0, self.length, BLOCK_TOKENS)
        digests = self._digests(starts)
        return [
            StoredBlock(start, min(BLOCK_TOKENS, self.length - start), f"{self._space}:lengths:{digest}")
            for start, digest in zip(starts, digests, strict=True)
        ]

    def checkpoints(self, lengths: Sequence[int]) -> list[str]:
        """Return the store's keys of the checkpoints on the path that have these lengths in tokens.

        The lengths must ascend.
        """
        digests = self._digests(lengths)
        return [f"{self._space}:checkpoint:{digest}:{length}" for digest, length in zip(digests, lengths, strict=True)]

    def _digests(self, lengths: Sequence[int]) -> Iterator[str]:
        digest, done = self._start.copy(), 0
        for length in lengths:
            digest.update(self.tokens[done * TOKEN_BYTES : length * TOKEN_BYTES])
            done = length
            yield digest.hexdigest()


def bit_of(length: int) -> int:
    """Return which bit of its block's bitmap stands for a checkpoint of `length` tokens."""
    return (length - 1) % BLOCK_TOKENS


def lengths_in(block: StoredBlock, bitmap: bytes | None) -> Iterator[int]:
    """Yield the lengths in tokens of the checkpoints that a block's bitmap lists, in ascending order.

    Bit 0 is the highest bit of the first byte.
    """
    for bit in range(block.size if bitmap else 0):
        byte = bit // 8
        if bitmap and byte < len(bitmap) and bitmap[byte] & (0x80 >> bit % 8):
            yield block.start + bit + 1


def space_of(model: str) -> str:
    """Return the prefix of all keys of a model in the shared store, made of its fingerprint `model`."""
    return f"{PREFIX}:{hashlib.blake2b(model.encode(), digest_size=8).hexdigest()}"


# A named state's description without its arrays, which are in the shared store.

_LOGITS: F32 = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class UnreadState(FrozenState):
    """The description of a named state whose arrays are in the shared store. Reading the arrays raises StateError."""

    bytes_there: int = field(kw_only=True)

    @classmethod
    def of(cls, frozen: FrozenState) -> UnreadState:
        """Return the description of `frozen` without its arrays."""
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


def make_unread(
    digest: str,
    has_logits: bool,
    num_tokens: int | None,
    last_tokens: tuple[int, ...],
    num_bytes: int,
    has_shifts: bool,
) -> UnreadState:
    """Return the description of a state in the shared store, from its digest, size and number of tokens."""
    logits = _LOGITS if has_logits else None
    return UnreadState(digest, _Unread(), logits, num_tokens, last_tokens, has_shifts, bytes_there=num_bytes)


class _Unread(Mapping[str, F32]):
    """A stand-in for a state's arrays by name, which raises StateError on any access."""

    def __getitem__(self, name: str) -> F32:
        raise StateError(f"{name} of a state was not read from the store")

    def __iter__(self) -> Iterator[str]:
        raise StateError("the values of a state were not read from the store")

    def __len__(self) -> int:
        raise StateError("the values of a state were not read from the store")


T = TypeVar("T")

ValueKey = tuple[str, bool]
"""Identifies the values of a named state: their digest, and whether logits are stored with them."""

_FORMS: Mapping[str, StateForm] = {form: form for form in get_args(StateForm)}
_MOST = 1 << 53  # bound on whole numbers: the store's scripts count with doubles


def key_of(frozen: FrozenState) -> ValueKey:
    """Return the key that identifies a state's arrays: the state's digest, and True if there are logits."""
    return frozen.digest, frozen.logits is not None


def encode_entry(entry: NamedState) -> str:
    """Return a named state, without its arrays, as a JSON text for the shared store."""
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
    """Return the named state with the id `key` from its JSON text. Raises StorageError if the text is invalid.

    `share` maps the state's description to the one object that stands for all equal ones.
    """
    with _damage_told("a named state"):
        content = json.loads(text)
        name, owner = _field(content, "name", str), content["owner"]
        for full_name in (name,) if owner is None else (name, owner):
            check_full_name(full_name, "name")
        digest, source = _field(content, "digest", str), _field(content, "source", str)
        if not (digest.isascii() and digest.isalnum()):
            raise ValueError(f"digest: {digest!r}")
        source.encode()  # raises if it is not valid Unicode
        if _field(content, "id", str) != key:
            raise ValueError(f"the entry of id {key!r} has the id {content['id']!r}")
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
    """A lease as read from the shared store, without the time of its last use, which is stored under another key."""

    owner: str
    number: int
    ttl: float


def encode_lease(lease: Lease) -> str:
    """Return a lease, without its owner and its last use, as a JSON text for the shared store."""
    return json.dumps({"number": lease.number, "ttl": lease.ttl})


def decode_lease(owner: str, text: str) -> StoredLease:
    """Return the lease of `owner` from its JSON text. Raises StorageError if the text is invalid."""
    with _damage_told("a lease"):
        content = json.loads(text)
        check_full_name(owner, "owner")
        ttl = _number(content, "ttl")
        if not 0 < ttl <= MAX_TTL:
            raise ValueError(f"ttl: {ttl!r}")
        return StoredLease(owner, _count(content, "number"), ttl)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the shared store's named states: the states and leases to set or remove."""

    entries: Mapping[str, str] = field(default_factory=dict)  # id -> text
    removed: Sequence[str] = ()  # ids
    leases: Mapping[str, str] = field(default_factory=dict)  # owner -> text; their times restart now
    ended: Sequence[str] = ()  # owners


def encode_change(change: Change) -> str:
    """Return a change of the named states as a JSON text for the shared store."""
    return json.dumps(
        {"entries": change.entries, "removed": change.removed, "leases": change.leases, "ended": change.ended}
    )


def decode_change(marked: bytes) -> Change:
    """Return the change of the named states in `marked`, a revision's mark followed by a JSON text.

    Raises StorageError if it is invalid. The entries and leases in the change stay JSON texts.
    """
    with _damage_told("a change"):
        text = marked.decode()
        content = json.loads(text[text.index("{") :])
        entries, leases = _field(content, "entries", dict), _field(content, "leases", dict)
        removed, ended = _field(content, "removed", list), _field(content, "ended", list)
        for part in (entries.values(), leases.values(), removed, ended):
            if not all(isinstance(one, str) for one in part):
                raise ValueError("a part of it is not a string")
        for key in removed:
            uuid.UUID(key)
        return Change(entries, removed, leases, ended)


@contextmanager
def _damage_told(what: str) -> Iterator[None]:
    """Convert exceptions that parsing an invalid text raises in a `with` block to StorageError.

    `what` names what the text stands for.
    """
    try:
        yield
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError, InvalidRequestError) as error:
        raise StorageError(f"the store has {what} that can't be parsed: {error!r}") from error


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
