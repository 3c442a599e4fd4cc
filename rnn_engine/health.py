"""Whether an engine serves requests, and if not, why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from rnn_engine.errors import UnavailableError

HealthStatus: TypeAlias = Literal["ok", "checking", "recovering", "stalled", "closing", "failed"]


@dataclass(frozen=True, slots=True)
class Health:
    """What an engine says of itself at one moment.

    `checking`: something failed, and one token is run to see whether the device answers. `recovering`: the device is
    opened again. `stalled`: the device has not answered for a long time. `closing`: it was told to stop. `failed`: it
    has stopped by itself, for good.
    """

    status: HealthStatus = "ok"
    reason: str | None = None  # None where the status is ok
    seconds: float = 0.0  # for how long it has been so, where that is known
    retry_after: float = 1.0  # seconds after which a refused request may be sent again

    def check(self) -> None:
        """Raise UnavailableError where a new request would have to wait for the device to come back."""
        if self.status in ("recovering", "stalled"):
            raise UnavailableError(self.reason or self.status, self.retry_after)
