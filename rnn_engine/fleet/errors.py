"""The error of a request whose replica is gone."""

from __future__ import annotations

from rnn_engine.errors import UnavailableError

RETRY_SECONDS = 1.0  # after which another replica is likely to answer


class ReplicaLostError(UnavailableError):
    """The replica that ran a request is gone, or can't be reached; another one may run it from the start."""

    def __init__(self, replica: str, reason: str) -> None:
        super().__init__(f"the replica {replica} that ran the request is gone: {reason}", RETRY_SECONDS)
