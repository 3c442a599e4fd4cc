"""Bounds on named states: how much memory they take, how many there are, and how long they last without use."""

from __future__ import annotations

from dataclasses import dataclass

from rnn_engine.errors import check_numbers

DEFAULT_CAPACITY = 512 << 20  # bytes of all named states together
DEFAULT_TTL = 3600.0
MAX_TTL = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits on the states and leases of one namespace. Shared states have no quota."""

    num_bytes: int | None = None  # of its states; None = a quarter of the capacity for all states
    names: int = 1000
    ttl: float = 7 * 86400.0  # seconds; the longest time without use that a lease may be given

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is negative or not finite."""
        check_numbers(self)
