"""Named states by name, by id, by owner and by namespace."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from states.named.entry import NamedState


class NameIndex:
    """Names and what they stand for, in the order in which the names were entered."""

    def __init__(self) -> None:
        self._by_name: dict[str, NamedState] = {}
        self._by_id: dict[uuid.UUID, NamedState] = {}
        self._of_owner: dict[str, dict[str, NamedState]] = {}  # owner -> name -> state
        self._in_namespace: dict[str, dict[str, NamedState]] = {}  # namespace -> name -> state

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[NamedState]:
        return iter(self._by_name.values())

    def named(self, name: str) -> NamedState | None:
        return self._by_name.get(name)

    def of_id(self, key: uuid.UUID) -> NamedState | None:
        return self._by_id.get(key)

    def owned_by(self, owner: str) -> list[NamedState]:
        return list(self._of_owner.get(owner, {}).values())

    def in_namespace(self, namespace: str) -> list[NamedState]:
        return list(self._in_namespace.get(namespace, {}).values())

    def put(self, entry: NamedState) -> None:
        """Add a state under its name, in place of the one that had the name, if any."""
        if (before := self._by_name.get(entry.name)) is not None:
            self._unlink(before)
        self._by_name[entry.name] = entry
        self._by_id[entry.id] = entry
        self._in_namespace.setdefault(entry.namespace, {})[entry.name] = entry
        if entry.owner is not None:
            self._of_owner.setdefault(entry.owner, {})[entry.name] = entry

    def remove(self, entry: NamedState) -> None:
        """Remove a state that is in the index."""
        del self._by_name[entry.name]
        self._unlink(entry)

    def _unlink(self, entry: NamedState) -> None:
        del self._by_id[entry.id]
        _discard(self._in_namespace, entry.namespace, entry.name)
        if entry.owner is not None:
            _discard(self._of_owner, entry.owner, entry.name)


def _discard(groups: dict[str, dict[str, NamedState]], group: str, name: str) -> None:
    del groups[group][name]
    if not groups[group]:
        del groups[group]
