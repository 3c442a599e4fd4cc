"""Bounds on named states: how much memory they take, how many there are, and how long they last without use."""

from __future__ import annotations

from dataclasses import dataclass

from rnn_engine.bounds import SIZE, Kind, Settings, setting

DEFAULT_CAPACITY = 512 << 20  # bytes of all named states together
DEFAULT_TTL = 3600.0
MAX_TTL = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Quota(Settings):
    """The limits on the states and leases of one namespace. Shared states have no quota."""

    num_bytes: int | None = setting(None, SIZE, "--key-state-bytes").help(
        "The most memory that the named states of one API key take.  [default: a quarter of --state-bytes]"
    )
    names: int = setting(1000, Kind(int, low=1), "--key-states").help("The most named states that one API key has.")
    ttl: float = setting(7 * 86400.0, Kind(float, "SECONDS", low=DEFAULT_TTL, high=MAX_TTL), "--key-state-ttl").help(
        "How long unused named states of an API key may stay, unless they are persistent."
    )
