"""The tier in host memory."""

from __future__ import annotations

from states.cache.checkpoint import Checkpoint, Tier
from states.cache.eviction import EvictionQueue
from states.payload import Payload, Precision


class HostTier:
    """Copies as numpy arrays, in f32 or f16."""

    def __init__(self, capacity: int, precision: Precision) -> None:
        self.ledger = EvictionQueue(Tier.HOST, capacity)
        self.precision = precision
        self._payloads: dict[Checkpoint, Payload] = {}

    def put(self, checkpoint: Checkpoint, payload: Payload) -> None:
        """Keep `payload`, which is in the tier's precision. The ledger must have room for it."""
        self.ledger.add(checkpoint, payload.num_bytes)
        self._payloads[checkpoint] = payload

    def get(self, checkpoint: Checkpoint) -> Payload:
        """What is kept of a checkpoint."""
        return self._payloads[checkpoint]

    def drop(self, checkpoint: Checkpoint) -> None:
        """Forget it."""
        del self._payloads[checkpoint]
        self.ledger.remove(checkpoint)
