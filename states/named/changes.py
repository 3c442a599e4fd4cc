"""What is done to a table of named states in one step, wherever the table and the states are kept."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace

from rnn_engine.errors import InvalidRequestError, NotFoundError
from states.files.reading import StateForm
from states.frozen import FrozenState
from states.named.entry import NamedState, Retention, check_changeable, check_new_name, split_name
from states.named.table import NamedStateTable

REMOVED = "it was removed"


def use(table: NamedStateTable, name_or_id: str) -> NamedState:
    """Return the state of this id or, else, of this name, and renew its owner's lease."""
    entry = table.get(name_or_id)
    if entry.owner is not None:
        table.leases.renew(entry.owner)
    return entry


def check_place(
    table: NamedStateTable,
    name: str,
    retention: Retention,
    num_bytes: int,
    num_names: int = 1,
) -> None:
    """Raise what `put` would raise for a state of this size."""
    check_retention(table, name, retention)
    table.check_free(name, "name")
    check_new_name(split_name(name)[1], "name")
    table.check_quota(name, num_bytes, num_names)
    table.check_room(num_bytes, retention.owner_of(name), num_names)


def check_retention(table: NamedStateTable, name: str, retention: Retention) -> None:
    """Raise InvalidRequestError for a retention that a state of this name can't have."""
    retention.check()
    table.quotas.check_ttl(name, retention.ttl)
    if retention.persistent and not table.keeps_persistent:
        raise InvalidRequestError("persistent", True, "false: the server has no folder of states")


def put(
    table: NamedStateTable,
    name: str,
    frozen: FrozenState,
    retention: Retention,
    *,
    source: str,
    form: StateForm,
    key: uuid.UUID | None,
) -> NamedState:
    """Enter a state under a free name. See `StateStore.put`."""
    check_place(table, name, retention, frozen.num_bytes)
    entry = make_named(table, name, table.renew(retention, name), frozen, form, source, key)
    table.enter(entry)
    return entry


def fork(
    table: NamedStateTable,
    name_or_id: str,
    names: Sequence[str],
    retention: Retention,
) -> tuple[NamedState, ...]:
    """Enter a state under more names. See `StateStore.fork`. The copies share the arrays of the state."""
    check_names(names)
    return copy(table, use(table, name_or_id), names, retention)


def move(table: NamedStateTable, name_or_id: str, name: str, retention: Retention) -> tuple[NamedState, NamedState]:
    """Give a state another name or owner; return it as it was and as it is. See `StateStore.move`."""
    old = use(table, name_or_id)
    check_changeable(old, "state")
    if name == old.name:
        check_retention(table, name, retention)
    else:
        check_place(table, name, retention, 0, num_names=0)
    owner = table.renew(retention, name)
    new = replace(old, version=table.next_version(), name=name, owner=owner)
    table.swap(old, new)
    return old, new


def compare_and_set(
    table: NamedStateTable, old: NamedState, frozen: FrozenState, *, source: str
) -> tuple[NamedState, NamedState]:
    """Replace the values of a state of this version; return it as it was and as it is. See `StateStore`."""
    held = table.of_id(old.id)
    if held is None or held != old:
        raise NotFoundError(f"state {old.plain_name!r} was removed or replaced meanwhile")
    check_changeable(held, "state")
    table.check_quota(held.name, table.quotas.growth(held.namespace, [frozen], [held.frozen]), 0)
    if held.owner is not None:
        table.leases.renew(held.owner)
    version, now = table.next_version(), time.time()
    new = replace(held, version=version, frozen=frozen, source=source, form="full", created=now)
    table.swap(held, new)
    return held, new


def check_names(names: Sequence[str]) -> None:
    """Raise InvalidRequestError where these are not the names of new states."""
    if not names or len(set(names)) < len(names):
        raise InvalidRequestError("names", list(names), "one or more names, all different")


def make_named(
    table: NamedStateTable,
    name: str,
    owner: str | None,
    frozen: FrozenState,
    form: StateForm,
    source: str,
    key: uuid.UUID | None = None,
) -> NamedState:
    """A new state with its own id, or one that follows from name and values, so that it is the same at every start."""
    key = key or uuid.uuid5(uuid.NAMESPACE_OID, f"{name}\n{frozen.digest}")
    if table.of_id(key) is not None or table.named(str(key)) is not None:
        key = uuid.uuid4()
    return NamedState(key, table.next_version(), name, form, source, time.time(), owner, frozen)


def copy(
    table: NamedStateTable,
    origin: NamedState,
    names: Sequence[str],
    retention: Retention,
) -> tuple[NamedState, ...]:
    """Enter the values of a state, of this table or not, under more names."""
    table.check_room(0, None, len(names))
    grown = table.quotas.growth(split_name(names[0])[0], [origin.frozen])
    table.check_quota(names[0], grown, len(names))
    for name in names:
        check_place(table, name, retention, 0)
    owners = [table.renew(retention, name) for name in names]
    entries = tuple(
        make_named(table, name, owner, origin.frozen, origin.form, f"copy of {origin.plain_name}")
        for name, owner in zip(names, owners, strict=True)
    )
    for entry in entries:
        table.enter(entry)
    return entries
