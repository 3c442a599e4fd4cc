"""Counts of connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

CloseReason: TypeAlias = Literal["refused", "made_room", "idle", "slow_head", "slow_body", "stalled"]
"""Why the server closed a connection, or took none: there were too many, another one came, its client sent no request,
sent one too slowly, or did not take its answer."""


@dataclass(slots=True)
class ConnectionCounters:
    """Counts since the start. For the event loop."""

    open: int = 0  # at this moment
    closed: dict[CloseReason, int] = field(default_factory=lambda: dict.fromkeys(get_args(CloseReason), 0))
