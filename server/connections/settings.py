"""What an operator may set of connections."""

from __future__ import annotations

from dataclasses import dataclass

from rnn_engine.checks import check_finite


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How many connections there may be, and how many seconds a client may take before its connection is closed."""

    max_connections: int = 1024  # fewer where the process may not open twice as many files
    max_per_client: int = 256  # of one address; those through a Unix socket are not counted
    idle_seconds: float = 75.0  # without a request
    header_seconds: float = 20.0  # for the head of a request, from its first byte on
    body_seconds: float = 30.0  # for its body; each `BODY_RATE` bytes that come give back one that has passed
    stall_seconds: float = 30.0  # in which at least `ANSWER_RATE` bytes a second of the answer must be taken

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is none."""
        check_finite("idle_seconds", self.idle_seconds)
        check_finite("header_seconds", self.header_seconds)
        check_finite("body_seconds", self.body_seconds)
        check_finite("stall_seconds", self.stall_seconds)


BODY_RATE = 4096
"""Bytes a second that a client has to send of a body."""

ANSWER_RATE = 512
"""Bytes a second that a client has to take of an answer that waits for it."""
