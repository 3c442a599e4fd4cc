"""`NamedState`, a state under a name, `Retention`, how long it is kept, and which names are allowed.

A plain name, as `talk`, is of a shared state, which every client may use. A name with a namespace, as `ann/talk`, is of
a state of the client that has this namespace. The owner of a lease is in the same namespace as the lease's states.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from rnn_engine.errors import InvalidRequestError
from rnn_engine_states.files.reading import StateForm
from rnn_engine_states.frozen import NO_INITIAL_STATE, FrozenState
from rnn_engine_states.named.quota import MAX_TTL

MAX_NAME = 128


@dataclass(frozen=True, slots=True)
class NamedState:
    """A state under a name at one moment, equal by id and version, and of use after the name is gone."""

    id: uuid.UUID  # stays the same when the name moves or the state advances
    version: int  # greater after each change; no two states of a store have the same
    name: str = field(compare=False)
    form: StateForm = field(compare=False)
    source: str = field(compare=False)  # the file's name, or what else it came from
    created: float = field(compare=False)  # Unix time, seconds
    owner: str | None = field(compare=False)  # of the lease that keeps it; None = persistent
    frozen: FrozenState = field(compare=False)
    read_only: bool = field(default=False, compare=False)  # the operator loads it at every start
    expires_in: float | None = field(default=None, compare=False)  # seconds without use, when a `StateStore` gave it

    @property
    def persistent(self) -> bool:
        """Whether the named state is kept until it is deleted. Others are kept only while their owner's lease lasts."""
        return self.owner is None

    @property
    def namespace(self) -> str:
        return split_name(self.name)[0]

    @property
    def plain_name(self) -> str:
        return split_name(self.name)[1]


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a new named state is kept: while its owner's lease lasts, or, if persistent, until it is deleted."""

    owner: str | None = None  # None = the state's own name
    ttl: float | None = None  # seconds without use; None = that of the owner's lease, or an hour if it has none yet
    persistent: bool = False
    shared: bool = False  # for all clients, if the server gives each its namespace

    def check(self) -> None:
        """Check the fields of a retention. Raises InvalidRequestError for the first value that is not allowed."""
        if self.owner is not None:
            check_full_name(self.owner, "owner")
        if self.persistent and self.owner is not None:
            raise InvalidRequestError("owner", self.owner, "null for a persistent state, which belongs to no lease")
        if self.persistent and self.ttl is not None:
            raise InvalidRequestError("ttl", self.ttl, "null for a persistent state, which belongs to no lease")
        if self.ttl is not None and not 0 < self.ttl <= MAX_TTL:
            raise InvalidRequestError("ttl", self.ttl, f"a number of seconds above 0 and at most {MAX_TTL:.0f}")

    def owner_of(self, name: str) -> str | None:
        """Return the owner whose lease keeps a state called `name` under this retention, None if it is persistent."""
        return None if self.persistent else self.owner or name


def check_changeable(entry: NamedState, field: str) -> None:
    """Raise InvalidRequestError, which names `field`, if a named state is read-only.

    States that the operator loads at every start are read-only for everybody, because the next start would undo a
    change.
    """
    if entry.read_only:
        raise InvalidRequestError(
            field,
            entry.name,
            "a state that can be changed; this one is read-only, since the server's operator loads it at every "
            "start; copy it under another name",
        )


def full_name(namespace: str, name: str) -> str:
    """Return a state's `name` with its namespace, as in `ann/talk`. With an empty namespace, return `name` alone."""
    return f"{namespace}/{name}" if namespace else name


def split_name(name: str) -> tuple[str, str]:
    """Return the namespace and the plain name in the full name of a state. A shared state's namespace is empty."""
    namespace, _, plain = name.rpartition("/")
    return namespace, plain


def parse_id(text: str) -> uuid.UUID | None:
    """Return the UUID that `text` spells in any of a UUID's notations, or None if it is no UUID."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def check_new_name(name: str, field: str) -> None:
    """Raise InvalidRequestError, which names `field`, if a new state can't have this plain name.

    Ids are looked up before names, so a state whose name is also an id might be unreachable. States of earlier
    versions may have such names and keep them.
    """
    check_name(name, field)
    if parse_id(name) is not None:
        raise InvalidRequestError(field, name, "a name that is not a UUID, since state ids are UUIDs")


def check_name(name: str, field: str) -> None:
    """Raise InvalidRequestError, which names `field`, unless `name` is a valid plain name of a state or an owner."""
    if not (len(name) <= MAX_NAME and _is_sayable(name)) or name == NO_INITIAL_STATE:
        raise InvalidRequestError(
            field,
            name,
            f"1 to {MAX_NAME} printable characters without slashes and without spaces at the ends, not only dots, "
            f"and not {NO_INITIAL_STATE!r}",
        )


def _is_sayable(name: str) -> bool:
    return name.isprintable() and not set(name) & set("/\\") and name.strip() == name and name.strip(".") != ""


def check_full_name(name: str, field: str) -> None:
    """Raise InvalidRequestError, which names `field`, unless `name` may name a state, with or without a namespace."""
    namespace, plain = split_name(name)
    for part in (namespace, plain) if namespace else (name,):
        check_name(part, field)


def check_names(names: Sequence[str]) -> None:
    """Raise InvalidRequestError if `names`, the names of new states, are empty or not all different."""
    if not names or len(set(names)) < len(names):
        raise InvalidRequestError("names", list(names), "one or more names, all different")


def name_taken(taken: NamedState, field: str) -> InvalidRequestError:
    """Return the error for a new name that is in use already, as the name of the state `taken`."""
    name = taken.plain_name
    return InvalidRequestError(field, name, f"a name that is free; {name!r} is the name of state {taken.id}")
