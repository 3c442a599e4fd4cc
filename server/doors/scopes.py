"""What an API key may do, and who asks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from server.doors.rates import Rate


class Scope(Enum):
    """How much a key may do; each scope includes those before it."""

    USE = "use"  # run the model, and read which states there are
    MANAGE = "manage"  # make, change, export and remove states of its own
    ADMIN = "admin"  # see and change what belongs to all

    def includes(self, other: Scope) -> bool:
        """Whether whoever may do this may do the other, too."""
        return _ASCENDING.index(self) >= _ASCENDING.index(other)


_ASCENDING = tuple(Scope)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sent a request."""

    name: str  # of the key; empty where no key is asked for
    scope: Scope
    weight: float = 1.0  # of its share of the engine
    rate: Rate | None = None  # None = what the server has for all


ANYONE = Principal("", Scope.ADMIN)
"""Who asks where there are no keys."""
