"""Sampling on the device: sends the settings of draws to it, reads the drawn tokens, and keeps penalties per slot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.forward.context import BuildContext
from rnn_engine.forward.step import StepBuffers, StepLimits, StepSize, slot_penalty_bytes
from rnn_engine.gpu import Buffer, BufferCopy, Dispatch, Memory
from rnn_engine.types import (
    MOST_DRAW_BIASES,
    NOTHING_DRAWN,
    Batch,
    DrawBiases,
    Drawn,
    DrawPenalties,
    TokenDraw,
    TokenLogprobs,
    TokenRun,
    mask_words,
)

_ALL: Final = 2**31  # top_k that keeps every token
_NUM_BIASES, _PENALTIES, _POSITION, _COUNTS_INPUT, _TOLD_WORDS, _TOLD_AT, _NUM_DRAWN = 8, 9, 16, 18, 19, 20, 21
"""The places of words in struct Draw."""

_NUCLEUS: Final = -3e38  # in place of the logarithm of min_p
_SETTLED, _GOES_ON = 1, 2  # outcomes; the third, 0, is a row that is left to the host


def count_draws(batch: Batch) -> int:
    """Return how many tokens the device draws for the run of `batch` that asks for most; 0 if the host draws all."""
    return max((run.draw.count for run in batch if run.draw is not None), default=0)


def count_told(batch: Batch) -> int:
    """Return how many 4-byte words of log-probabilities and ids of likeliest tokens the draws of `batch` can report."""
    return sum(_count_told(run.draw) for run in batch)


def _count_told(draw: TokenDraw | None) -> int:
    return 0 if draw is None else draw.count * _told_words(draw)


def _told_words(draw: TokenDraw) -> int:
    """Return how many 4-byte words of log-probabilities and token ids the device reports with each drawn token."""
    return 0 if draw.logprobs is None else 2 + 2 * draw.logprobs


def encode_draws(batch: Batch, limits: StepLimits, penalties: SlotPenalties) -> NDArray[np.uint32]:
    """Encode the draws of `batch` as an array [R, words], with a `struct Draw` of draw.wgsl for each logit row.

    Rows without a draw are zeros. `penalties` is updated: it uploads what the draws need before their first token.
    """
    ends = np.cumsum([run.rows for run in batch])
    drawing = [run.draw is not None for run in batch]
    draws = [run.draw for run in batch if run.draw is not None]
    words = np.zeros((ends.item(-1), limits.draw_words), np.uint32)
    floats = words.view(np.float32)
    rows = ends[drawing] - 1
    seeds = np.array([draw.seed for draw in draws], np.uint64)
    words[rows, 0] = seeds & np.uint64(2**32 - 1)
    words[rows, 1] = seeds >> np.uint64(32)
    words[rows, 2:5] = [(draw.index, draw.count, draw.top_k or _ALL) for draw in draws]
    floats[rows, 5:8] = [
        (draw.top_p, draw.temperature, _NUCLEUS if draw.min_p is None else math.log(draw.min_p)) for draw in draws
    ]
    penalised = [run.draw is not None and run.draw.penalties is not None for run in batch]
    if any(penalised):
        rows = ends[penalised] - 1
        amounts, places = zip(*map(penalties.prepare, compress(batch, penalised)), strict=True)
        floats[rows, _PENALTIES:_POSITION] = amounts
        words[rows, _POSITION : _COUNTS_INPUT + 1] = places
    num_told = 0
    for run, end in zip(batch, ends.tolist(), strict=True):
        if run.draw is not None and run.draw.biases is not None:
            words[end - 1, _NUM_BIASES] = len(run.draw.biases.tokens)
        if run.draw is not None and run.draw.logprobs is not None:
            words[end - 1, _TOLD_WORDS : _TOLD_AT + 1] = _told_words(run.draw), num_told
            num_told += _count_told(run.draw)
    return words


def decode_draws(answer: bytes, batch: Batch, limits: StepLimits) -> list[Drawn]:
    """Return what the device drew after each run, from the `struct Draw` of each row and the reported words."""
    words = np.frombuffer(answer, np.uint32)
    ends = np.cumsum([run.rows for run in batch])
    rows, told = np.split(words, [ends.item(-1) * limits.draw_words])
    outcomes = rows.reshape(-1, limits.draw_words)[ends - 1, _NUM_DRAWN:].tolist()
    drawn = [
        NOTHING_DRAWN if run.draw is None else Drawn(tokens[:count], outcome >= _SETTLED, outcome == _GOES_ON)
        for run, (count, outcome, *tokens) in zip(batch, outcomes, strict=True)
    ]
    if len(told):
        _decode_told(told, batch, drawn)
    return drawn


def _decode_told(told: NDArray[np.uint32], batch: Batch, drawn: Sequence[Drawn]) -> None:
    """Set the log-probabilities in each item of `drawn`, decoded from the words `told` that the device reported."""
    first = 0
    floats = told.view(np.float32).astype(np.float64)
    for run, one in zip(batch, drawn, strict=True):
        if run.draw is not None and run.draw.logprobs is not None:
            size = _told_words(run.draw)
            whole = slice(first, first + len(one.tokens) * size)
            one.logprobs = _logprobs(told[whole].reshape(-1, size), floats[whole].reshape(-1, size))
            first += _count_told(run.draw)


def _logprobs(words: NDArray[np.uint32], floats: NDArray[np.float64]) -> list[TokenLogprobs]:
    """Return the log-probabilities of one run's drawn tokens, from the reported words [tokens, words] and as f32."""
    values = floats - floats[:, 1:2]
    half = words.shape[1] // 2
    ids, likeliest = words[:, 2 : 1 + half].tolist(), values[:, 1 + half :].tolist()
    tops = [tuple(zip(tokens, logprobs, strict=True)) for tokens, logprobs in zip(ids, likeliest, strict=True)]
    return [TokenLogprobs(own, top) for own, top in zip(values[:, 0].tolist(), tops, strict=True)]


class Following:
    """The stage, first in a step, that sets a run's input to the slot's token drawn last if the run `follows`."""

    def __init__(self, context: BuildContext) -> None:
        threads = context.tuning.norm_threads
        self._stage = context.kernel_stage(
            "follow",
            "follow",
            {"THREADS": threads},
            {"last_drawn": context.buffers.last_drawn},
            lambda step: (-(-step.num_rows // threads), 1),
        )

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        if step.has_following:
            yield from self._stage.dispatches(step)


class DeviceDraws:
    """Uploads the inputs of a step's draws to the device, and lists the copies that bring the drawn tokens back.

    A slot's stop tokens and biases are uploaded if they are others than those of its last draw.
    """

    def __init__(self, buffers: StepBuffers, vocab_size: int, limits: StepLimits, memory: Memory) -> None:
        self._buffers = buffers
        self._limits = limits
        self._memory = memory
        self._no_halts = np.zeros(mask_words(vocab_size), np.uint32)
        self._halts = [self._no_halts] * limits.num_slots  # by slot: what the device has, like the next
        self._biases: list[DrawBiases | None] = [None] * limits.num_slots
        self._penalties = SlotPenalties(buffers.penalties, vocab_size, limits.num_penalty_slots, memory)

    def upload(self, batch: Batch) -> None:
        """Upload what the device needs for the draws of `batch`: stop tokens, biases, penalties and `struct Draw`."""
        for run in batch:
            if run.draw is not None:
                halts, biases = self._no_halts if run.draw.halts is None else run.draw.halts, run.draw.biases
                if halts is not self._halts[run.slot]:
                    self._memory.upload(self._buffers.halts, run.slot * halts.nbytes, halts)
                    self._halts[run.slot] = halts
                if biases is not None and biases is not self._biases[run.slot]:
                    words = np.stack((biases.tokens.astype(np.uint32), biases.values.view(np.uint32)), axis=1)
                    self._memory.upload(self._buffers.biases, 8 * MOST_DRAW_BIASES * run.slot, words)
                    self._biases[run.slot] = biases
        self._memory.upload(self._buffers.draws, 0, encode_draws(batch, self._limits, self._penalties))

    def copies(self, batch: Batch, answer: Buffer, start: int) -> Iterator[BufferCopy]:
        """Yield the copies of the results of the draws into `answer`, from byte `start` on, for `decode_draws`."""
        row_bytes = 4 * self._limits.draw_words
        num_bytes = row_bytes * sum(run.rows for run in batch)
        yield BufferCopy(self._buffers.draws, 0, answer, start, num_bytes)
        if told := count_told(batch):
            yield BufferCopy(
                self._buffers.draws, row_bytes * self._limits.max_rows, answer, start + num_bytes, 4 * told
            )


# Repetition penalties that a device stores and updates for the sequences in its slots; see penalties.wgsl.

_WHOLE_TABLE: Final = 2**32 - 1  # a window that holds every token
_LEAST_SCALE: Final = 2.0**-60  # below it the numbers of penalties.wgsl are multiplied by the scale, which becomes 1
_ERROR: Final = 2.0**-23  # twice the greatest relative error of one operation in f32


class SlotPenalties:
    """The sampling penalties of the sequences in the first `num_slots` slots, in a buffer on the device."""

    def __init__(self, buffer: Buffer, vocab_size: int, num_slots: int, memory: Memory) -> None:
        """Use `buffer` for the penalties of all slots: [slots, 2, V] u32, the rows of penalties.wgsl."""
        self._buffer = buffer
        self._memory = memory
        self._vocab_size = vocab_size
        self._texts: list[_Text | None] = [None] * num_slots  # by slot: the text whose penalties it holds

    def prepare(self, run: TokenRun) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Return the fields of `struct Draw` for the penalties of `run`, which must have a draw with penalties.

        These are the fields from `presence` to `repeat`, and from `position` to `counts_input`. If the slot holds the
        penalties of another text, this uploads those from which the new text starts.
        """
        slot, draw = run.slot, run.draw
        assert draw is not None, "a run that draws"
        assert draw.penalties is not None, "and penalises"
        penalties = draw.penalties
        counted = draw.index - draw.counts_input  # tokens of the text that the slot's rows have counted
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
        window = _WHOLE_TABLE if penalties.window is None else penalties.window
        return amounts, (text.num_seen + counted - text.first, window, draw.counts_input)

    def _begin(self, slot: int, penalties: DrawPenalties, counted: int) -> _Text:
        """Upload the penalties of a text, with `counted` tokens in them, to its `slot`; return the slot's record."""
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
    """A slot's record of the penalties that the device has: whose they are, and how many tokens they count."""

    penalties: DrawPenalties
    first: int  # the number of the text's tokens that were counted when the slot took it over
    base: int  # the number of counted tokens at which the scale was 1
    num_seen: int  # the greatest place in `penalties.seen`, or 0


def _penalty_error(decay: float, length: int) -> float:
    """Return an upper bound of the relative error of a penalty that the device has summed up over `length` tokens.

    A number is a sum of f32, and each addition may be off by half a unit in the last place.
    If the penalties decay, that error's share of the sum shrinks with later additions.
    The scale is a product of up to eighteen factors. It enters both what is added and what is read: 40 units.
    The bound is twice the sum of all this.
    """
    return _ERROR * (96.0 + min(length, 1.0 / max(1.0 - decay, 1e-9)))
