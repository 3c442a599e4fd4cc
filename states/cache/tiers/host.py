"""The tier in host memory."""

from __future__ import annotations

from rnn_engine.types import ModelShape
from states.cache.checkpoint import Checkpoint
from states.cache.eviction import EvictionQueue
from states.cache.tiers.tier import MakeRoom, ReadyPayload, Tier
from states.payload import Payload, Precision


class HostTier(Tier):
    """Copies as numpy arrays, in f32 or f16."""

    name = "host"

    def __init__(self, shape: ModelShape, capacity: int, precision: Precision) -> None:
        self.queue = EvictionQueue(self.name, capacity)
        self._precision: Precision = precision
        self._state_bytes = shape.state_bytes // (2 if precision == "f16" else 1)
        self._logits_bytes = 4 * shape.vocab_size
        self._payloads: dict[Checkpoint, Payload] = {}

    def copy_bytes(self, checkpoint: Checkpoint) -> int:
        return self._state_bytes + (self._logits_bytes if checkpoint.has_logits else 0)

    def put(self, checkpoint: Checkpoint, payload: Payload, make_room: MakeRoom, *, wait: bool = False) -> bool:  # noqa: ARG002
        stored = payload.stored_as(self._precision)
        if not make_room(stored.num_bytes):
            return False
        self.queue.add(checkpoint, stored.num_bytes)
        self._payloads[checkpoint] = stored
        return True

    def get(self, checkpoint: Checkpoint) -> Payload | None:
        return self._payloads[checkpoint]

    def start_read(self, checkpoint: Checkpoint) -> ReadyPayload:
        return ReadyPayload(self._payloads[checkpoint])

    def drop(self, checkpoint: Checkpoint) -> None:
        del self._payloads[checkpoint]
        self.queue.remove(checkpoint)

    def close(self) -> None:
        """Leave the copies to the garbage collector, like the tier itself."""
