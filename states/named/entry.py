"""States under names: what is known of one, for how long it is to be kept, and what may be a name.

A name is plain, as `talk`, and shared by all, or in a namespace, as `ann/talk`: then it is the client's whose namespace
that is. The owner of a lease is in the namespace of its states.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from rnn_engine.errors import InvalidRequestError
from states.files.reading import StateForm
from states.frozen import NO_INITIAL_STATE, FrozenState
from states.named.leases import MAX_TTL

MAX_NAME = 128


@dataclass(frozen=True, slots=True)
class NamedState:
    """A name and what it stands for at a moment; equal where id and version are.

    It stays usable when the name is gone or stands for another state.
    """

    id: uuid.UUID  # stays the same when the name moves or the state advances
    version: int  # greater after each change; no two states of a store have the same
    name: str = field(compare=False)
    form: StateForm = field(compare=False)
    source: str = field(compare=False)  # the file's name, or where else it came from
    created: float = field(compare=False)  # Unix time, seconds
    owner: str | None = field(compare=False)  # whose lease it belongs to; None = persistent
    frozen: FrozenState = field(compare=False)
    read_only: bool = field(default=False, compare=False)  # the operator brings it at every start
    expires_in: float | None = field(default=None, compare=False)  # seconds without use, when a `StateStore` gave it

    @property
    def persistent(self) -> bool:
        """Whether it stays until it is removed."""
        return self.owner is None

    @property
    def namespace(self) -> str:
        """Whose it is; empty for a shared one."""
        return split_name(self.name)[0]

    @property
    def plain_name(self) -> str:
        """Its name as whoever it belongs to says it."""
        return split_name(self.name)[1]


@dataclass(frozen=True, slots=True)
class Retention:
    """For how long a new name is to be kept: with an owner's lease, or until it is removed."""

    owner: str | None = None  # None = the state's own name
    ttl: float | None = None  # seconds without use; None = as the owner has it already, else an hour
    persistent: bool = False
    shared: bool = False  # for all clients, where a server tells them apart

    def check(self) -> None:
        """Raise InvalidRequestError for the first field whose value is not allowed."""
        if self.owner is not None:
            check_full_name(self.owner, "owner")
        if self.persistent and self.owner is not None:
            raise InvalidRequestError("owner", self.owner, "null for a persistent state, which belongs to no lease")
        if self.persistent and self.ttl is not None:
            raise InvalidRequestError("ttl", self.ttl, "null for a persistent state, which belongs to no lease")
        if self.ttl is not None and not 0 < self.ttl <= MAX_TTL:
            raise InvalidRequestError("ttl", self.ttl, f"seconds, more than 0 and at most {MAX_TTL:.0f}")

    def owner_of(self, name: str) -> str | None:
        """Return who owns a state of this name: None for a persistent one."""
        return None if self.persistent else self.owner or name


def check_changeable(entry: NamedState, field: str) -> None:
    """Raise InvalidRequestError, which names `field`, for a state that is read-only.

    Those that the operator brings at every start are so for everybody: the next start would undo a change.
    """
    if entry.read_only:
        raise InvalidRequestError(
            field,
            entry.name,
            "a state that may be changed; this one is the operator's: copy it under another name",
        )


def full_name(namespace: str, name: str) -> str:
    """Return the name in a namespace; the empty one leaves it plain."""
    return f"{namespace}/{name}" if namespace else name


def split_name(name: str) -> tuple[str, str]:
    """Return the namespace of a name and the plain name in it."""
    namespace, _, plain = name.rpartition("/")
    return namespace, plain


def parse_id(text: str) -> uuid.UUID | None:
    """The id that `text` spells in any of the forms of a UUID; None where it spells none."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def check_new_name(name: str, field: str) -> None:
    """Raise InvalidRequestError, which names `field`, where a state can't be given this plain name.

    Ids are looked up before names, so a state whose name spells an id could be out of reach. States of earlier
    versions may have such names and keep them.
    """
    check_name(name, field)
    if parse_id(name) is not None:
        raise InvalidRequestError(field, name, "a name that is no UUID, since ids of states are UUIDs")


def check_name(name: str, field: str) -> None:
    """Raise InvalidRequestError, which names `field`, where this can't be the plain name of a state or an owner."""
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
    """The same for a name in a namespace, or a plain one."""
    namespace, plain = split_name(name)
    for part in (namespace, plain) if namespace else (name,):
        check_name(part, field)
