"""The penalties that a device keeps for the sequences in its slots: see penalties.wgsl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rnn_engine.draws import DrawPenalties
from rnn_engine.forward.step import slot_penalty_bytes
from rnn_engine.gpu import Buffer, Memory
from rnn_engine.types import TokenRun

_ALL: Final = 2**32 - 1  # a window that every token is in
_LEAST_SCALE: Final = 2.0**-60  # of the numbers of penalties.wgsl, which are then multiplied by it
_ERROR: Final = 2.0**-23  # of f32, twice what one operation may be off by


class SlotPenalties:
    """The penalties of the sequences in the first slots."""

    def __init__(self, buffer: Buffer, vocab_size: int, num_slots: int, memory: Memory) -> None:
        """`buffer`: [slots, 2, V] u32."""
        self._buffer = buffer
        self._memory = memory
        self._vocab_size = vocab_size
        self._texts: list[_Text | None] = [None] * num_slots  # by slot: whose penalties it holds

    def prepare(self, run: TokenRun) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Return the words of struct Draw from `presence` to `repeat`, and from `position` to `counts_input`.

        Uploads what there was before a text. The run draws with penalties.
        """
        slot, draw = run.slot, run.draw
        assert draw is not None, "a run that draws"
        assert draw.penalties is not None, "and penalises"
        penalties = draw.penalties
        counted = draw.index - draw.counts_input  # tokens of the text that are counted in the slot's rows
        text, rescale = self._texts[slot], 1.0
        if text is None or text.penalties is not penalties:
            self._texts[slot] = text = self._begin(slot, penalties, counted)
            rescale = 0.0 if penalties.earlier is None else 1.0
        decay, ahead = penalties.decay, draw.count + 1
        if decay ** (counted + ahead - text.base) < _LEAST_SCALE:
            rescale, text.base = decay ** (counted - text.base), counted
        scale = decay ** (counted - text.base)
        error = _penalty_error(decay, counted + ahead - text.first)
        amounts = penalties.presence, penalties.frequency, decay, scale, rescale, error, penalties.repeat
        window = _ALL if penalties.window is None else penalties.window
        return amounts, (text.num_seen + counted - text.first, window, draw.counts_input)

    def _begin(self, slot: int, penalties: DrawPenalties, counted: int) -> _Text:
        """Upload what there was before a text of which so many tokens were `counted`."""
        first = slot * slot_penalty_bytes(self._vocab_size)
        if penalties.earlier is not None:
            self._memory.upload(self._buffer, first, penalties.earlier)
        num_seen = 0
        if penalties.repeat > 1.0:
            seen = np.zeros(self._vocab_size, np.uint32) if penalties.seen is None else penalties.seen
            self._memory.upload(self._buffer, first + seen.nbytes, seen)
            num_seen = int(seen.max())
        return _Text(penalties, counted, counted, num_seen)


@dataclass(slots=True)
class _Text:
    """A text whose penalties are kept: from which of its tokens on, and at which of them the scale was 1."""

    penalties: DrawPenalties
    first: int
    base: int
    num_seen: int  # before the first


def _penalty_error(decay: float, length: int) -> float:
    """Bound what a penalty is off by, as a part of itself, after `length` tokens.

    A number is a sum of f32, and each addition to it may be off by half a unit in the last place, which later ones
    make less of a part where the penalties decay. The scale is a product of up to eighteen, and is a part of what is
    added and of what is read: 40 units. All that is taken twice.
    """
    return _ERROR * (96.0 + min(length, 1.0 / max(1.0 - decay, 1e-9)))
