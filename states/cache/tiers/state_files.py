"""Checkpoints as full-state files, for the tiers that keep them so."""

from __future__ import annotations

import numpy as np

from rnn_engine.types import F32, ModelShape
from states.cache.checkpoint import Checkpoint
from states.files.full import Origin, SavedState, full_state_bytes
from states.payload import Payload, Precision


class StateFileForm:
    """What the files of one model's checkpoints hold."""

    def __init__(self, model: str, shape: ModelShape, precision: Precision) -> None:
        """`model` is the fingerprint of whatever must be equal for a state to be continued."""
        self._model = model
        self._shape = shape
        self._precision: Precision = precision
        self._sample = _sample_payload(shape, precision)

    def saved(self, checkpoint: Checkpoint, payload: Payload) -> SavedState:
        """What the file of a checkpoint holds."""
        return self._saved(checkpoint, payload.stored_as(self._precision))

    def num_bytes(self, saved: SavedState) -> int:
        """The exact size of a file."""
        return full_state_bytes(saved, self._shape.version)

    def expected_bytes(self, checkpoint: Checkpoint) -> int:
        """The usual size of a checkpoint's file."""
        logits = self._sample.logits if checkpoint.has_logits else None
        return self.num_bytes(self._saved(checkpoint, Payload(self._sample.state, logits)))

    def _saved(self, checkpoint: Checkpoint, payload: Payload) -> SavedState:
        origin = Origin(self._model, checkpoint.root, checkpoint.length, checkpoint.kind.value)
        return SavedState(origin, checkpoint.known_place().tokens(), payload)


def _sample_payload(shape: ModelShape, precision: Precision) -> Payload:
    """A payload of the usual size, whose arrays take no memory."""
    dtype = np.float16 if precision == "f16" else np.float32
    state = {name: np.broadcast_to(dtype(0), array.shape) for name, array in shape.initial_state().items()}
    logits: F32 = np.broadcast_to(np.float32(0), (shape.vocab_size,))
    return Payload(state, logits)
