"""Copies of checkpoints on their way from one tier to another, and what they mean for who wants to go on from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from rnn_engine.types import F32
from states.cache.tiers.tier import PendingPayload, Tier


class Access(Enum):
    """How a sequence gets at a checkpoint."""

    AT_HAND = "at_hand"  # it can go on from it now
    SLOW = "slow"  # it has to be fetched first
    MOVING = "moving"  # between two slow tiers


@dataclass(frozen=True, slots=True)
class Source:
    """Where a tier gets a copy from: a live slot, for tiers on the device, or a copy on the host, read when needed."""

    start_read: Callable[[], PendingPayload]
    logits: F32 | None = None  # [V] where they are known before the copy has arrived
    slot: int | None = None
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A copy on its way to a tier, whose queue counts it already."""

    tier: Tier
    source: Source
    pending: PendingPayload
