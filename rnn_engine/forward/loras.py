"""LoRAs that are not merged, on a device: the pairs of several lie side by side, and each token has a scale for each.

A matrix W [out, in] has P places for LoRAs of up to rank R. Their halves make one A [P R, in] and one B [out, P R], so
two small matmuls after that of W serve a whole step: hidden = s * (A x), y += B hidden, with a vector s of each token
that is 1 in the R columns of its LoRA and 0 elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rnn_engine.forward.matmul import BoundPairs, LoadedPart, MatMulKernels
from rnn_engine.forward.pairs import Pairs
from rnn_engine.forward.segments import upload_rows
from rnn_engine.forward.weight_formats import PANEL_ROWS, round_up
from rnn_engine.gpu import Memory
from rnn_engine.types import F32, Batch, LoraPairs, LoraRoom


def pairs_for(room: LoraRoom) -> Pairs | None:
    """Return the pairs with which kernels have room for LoRAs; None without places."""
    return Pairs(room.matrices, room.places * _stride(room), None) if room.places and room.matrices else None


def _stride(room: LoraRoom) -> int:
    """Return the columns of one place: its rank, rounded up to whole panels."""
    return round_up(room.rank, PANEL_ROWS)


class DeviceLoras:
    """The LoRAs of a model on a device."""

    def __init__(self, room: LoraRoom, matmuls: MatMulKernels, memory: Memory) -> None:
        """Start without LoRAs. The model was loaded with `matmuls`, whose pairs are those for `room`."""
        self.room = room
        self._stride = _stride(room)
        self._pairs: Sequence[BoundPairs] = matmuls.bound_pairs
        self._scales = matmuls.pair_buffers(memory, 0)[1] if self._pairs else None
        self._memory = memory
        self._loras: list[LoraPairs | None] = [None] * room.places

    def write(self, place: int, lora: LoraPairs) -> None:
        """Upload a LoRA for which there is room. What lies at other places stays."""
        old, self._loras[place] = self._loras[place], lora
        changed = lora.pairs.keys() | (old.pairs.keys() if old is not None else ())
        for pairs in self._pairs:
            (downs, _), (ups, _) = pairs.down.parts[0], pairs.up.parts[0]
            for number, matrix in enumerate(pairs.matrices):
                if matrix not in changed:
                    continue
                outer, inner = self.room.matrices[matrix]
                if matrix in lora.pairs:
                    down = np.zeros((self._stride, inner), np.float32)
                    down[: len(lora.pairs[matrix][0])] = lora.pairs[matrix][0]
                    self._upload(downs, number, down, place * self._stride // PANEL_ROWS)
                up = np.zeros((outer, self.room.places * self._stride), np.float32)
                for start, other in zip(range(0, up.shape[1], self._stride), self._loras, strict=True):
                    if other is not None and matrix in other.pairs:
                        half = other.pairs[matrix][1]
                        up[:, start : start + half.shape[1]] = half
                self._upload(ups, number, up, 0)

    def upload_scales(self, batch: Batch) -> None:
        """Upload the scales of all tokens of `batch`."""
        assert self._scales is not None, "a run with a LoRA"
        scales = np.zeros((len(batch), self.room.places, self._stride), np.float32)
        for row, run in zip(scales, batch, strict=True):
            if run.lora is not None:
                row[run.lora] = 1
        self._memory.upload(self._scales, 0, scales.repeat([len(run.tokens) for run in batch], axis=0))

    def _upload(self, part: LoadedPart, number: int, rows: F32, first_panel: int) -> None:
        """Upload rows of the matrix `number` of `part`, from one of its panels on."""
        place = part.places[number]
        first_block = place.weights_start + first_panel * place.panel_blocks
        upload_rows(self._memory, part.weights, part.format, rows, first_block)
