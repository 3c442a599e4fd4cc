"""Limits and buffers of steps, the encoding of batches and draws, and the decoding of read-outs and drawn tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.forward.contract import make_masks, sound_runs
from rnn_engine.forward.weight_formats import round_up
from rnn_engine.gpu import Buffer, BufferCopy, Dispatch, Memory
from rnn_engine.types import (
    F32,
    MOST_DRAW_BIASES,
    MOST_DRAW_LOGPROBS,
    MOST_DRAWS,
    NOTHING_DRAWN,
    Batch,
    DrawBiases,
    Drawn,
    DrawPenalties,
    ModelShape,
    Readout,
    TokenDraw,
    TokenLogprobs,
    TokenRun,
    mask_words,
)
from rnn_engine_shaders import Constant

if TYPE_CHECKING:
    from rnn_engine.forward.context import BuildContext


def slot_penalty_bytes(vocab_size: int) -> int:
    """Return the bytes that the penalties of one slot take on the device: two rows of `vocab_size` words."""
    return 2 * 4 * vocab_size


@dataclass(frozen=True, slots=True)
class StepSize:
    """The numbers of tokens, runs and rows of a step, and its kinds of inputs. Equal sizes have equal dispatches."""

    num_tokens: int
    num_runs: int
    num_rows: int
    has_masks: bool = False  # some row has a mask of its own
    has_draws: bool = False  # the device draws from some row
    has_following: bool = False  # some run continues from the token that its slot has drawn last
    has_loras: bool = False  # some run has a LoRA


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The greatest numbers of tokens, rows, candidates and draws of a step, and the number of slots."""

    num_slots: int
    max_tokens: int
    max_rows: int
    num_candidates: int
    max_draws: int = MOST_DRAWS  # tokens that a step draws after a run
    num_penalty_slots: int = 0  # in the first slots of this number, draws may have penalties

    @property
    def batch_places(self) -> tuple[int, int, int]:
        """The indices of the first row, the first token and the end among the words of `struct Batch`."""
        rows_start = HEADER_WORDS + RUN_WORDS * round_up(self.num_slots, _ROOM)
        tokens_start = rows_start + ROW_WORDS * self.max_rows
        return rows_start, tokens_start, tokens_start + TOKEN_WORDS * self.max_tokens

    @property
    def readout_words(self) -> int:
        return 5 + 2 * self.num_candidates

    @property
    def draw_words(self) -> int:
        return 23 + self.max_draws

    @property
    def max_logprobs(self) -> int:
        return min(MOST_DRAW_LOGPROBS, self.num_candidates)

    @property
    def told_words(self) -> int:
        """The most 4-byte words of log-probabilities and token ids that the draws of one step can report."""
        return self.num_slots * self.max_draws * (2 + 2 * self.max_logprobs)

    def constants(self) -> dict[str, Constant]:
        """Return the constants of shaders that include batch.wgsl. A step has at most one run for each slot."""
        return {"MAX_RUNS": round_up(self.num_slots, _ROOM), "MAX_ROWS": self.max_rows, "MAX_TOKENS": self.max_tokens}


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """The device buffers of a step's inputs, and of those activations that models of every version have."""

    batch: Buffer  # struct Batch of batch.wgsl
    masks: Buffer  # [R, ceil(V / 32)] u32, a bit a token
    draws: Buffer  # struct Draws of draw.wgsl
    halts: Buffer  # [slots, ceil(V / 32)] u32, a set bit for each token after which none is drawn
    last_drawn: Buffer  # [slots] u32, a token or HALTED of last_drawn.wgsl
    biases: Buffer  # [slots, MOST_DRAW_BIASES] struct Bias of draw.wgsl
    penalties: Buffer  # [slots that may have some, 2, V] u32, the rows of penalties.wgsl
    x: Buffer  # [T, D] f32, the residual stream
    normed: Buffer  # [R, D] f32, the rows after the last norm

    @classmethod
    def create(cls, shape: ModelShape, limits: StepLimits, memory: Memory) -> StepBuffers:
        create, vocab = memory.create_buffer, shape.vocab_size
        return cls(
            batch=create("batch", 4 * limits.batch_places[2]),
            masks=create("masks", 4 * limits.max_rows * mask_words(vocab)),
            draws=create("draws", 4 * (limits.max_rows * limits.draw_words + limits.told_words)),
            halts=create("halts", 4 * limits.num_slots * mask_words(vocab)),
            last_drawn=create("tokens drawn last", 4 * limits.num_slots),
            biases=create("biases", 8 * limits.num_slots * MOST_DRAW_BIASES),
            penalties=create("penalties", limits.num_penalty_slots * slot_penalty_bytes(vocab)),
            x=create("x", 4 * limits.max_tokens * shape.width),
            normed=create("normed rows", 4 * limits.max_rows * shape.width),
        )


@dataclass(frozen=True, slots=True)
class HeadOutputs:
    """The device buffers of a step's results: its logits, and the read-out of each logit row."""

    logits: Buffer  # [R, V] f32, or [R, D] of a model without a head
    readout: Buffer  # [R] struct Readout of readout.wgsl

    @classmethod
    def create_pair(cls, shape: ModelShape, limits: StepLimits, memory: Memory) -> tuple[HeadOutputs, HeadOutputs]:
        """Create the outputs of even and odd steps: logits of their own, and one read-out that each copies."""
        readout = memory.create_buffer("readout", 4 * limits.max_rows * limits.readout_words)
        logits = [memory.create_buffer("logits", 4 * limits.max_rows * shape.row_size) for _ in range(2)]
        return cls(logits[0], readout), cls(logits[1], readout)


HEADER_WORDS, RUN_WORDS, ROW_WORDS, TOKEN_WORDS = 4, 4, 3, 2
NO_MASK = DRAWN_LAST = 0xFFFFFFFF
_ROOM = 64  # kernels have room for a multiple of it, so a driver that keeps some has them for other numbers of slots


def encode_batch(batch: Batch, limits: StepLimits, shift_sides: Sequence[int]) -> NDArray[np.uint32]:
    """Encode `batch` as the 4-byte words of `struct Batch` of batch.wgsl, up to its last token.

    `shift_sides` has for each slot the copy of the token shifts, 0 or 1, that the step reads.
    """
    slots = [run.slot for run in batch]
    lengths = np.array([len(run.tokens) for run in batch])
    num_rows = np.array([run.rows for run in batch])
    ends, row_ends = lengths.cumsum(), num_rows.cumsum()
    rows_start, tokens_start, _ = limits.batch_places
    words = np.zeros(tokens_start + TOKEN_WORDS * ends.item(-1), np.uint32)
    words[:3] = ends.item(-1), len(batch), row_ends.item(-1)
    runs = words[HEADER_WORDS:rows_start].reshape(-1, RUN_WORDS)
    rows = words[rows_start:tokens_start].reshape(-1, ROW_WORDS)
    tokens = words[tokens_start:].reshape(-1, TOKEN_WORDS)
    runs[: len(batch)] = np.stack([slots, ends - lengths, lengths, [shift_sides[slot] for slot in slots]], axis=1)
    tokens[:, 0] = np.arange(len(batch)).repeat(lengths)
    tokens[:, 1] = list(chain.from_iterable(run.tokens for run in batch))
    rows[: row_ends[-1], 0] = (ends - row_ends).repeat(num_rows) + np.arange(row_ends[-1])
    rows[:, 2] = NO_MASK
    num_masks = 0
    for run, end, row_end in zip(batch, ends.tolist(), row_ends.tolist(), strict=True):
        own_rows = slice(row_end - run.rows, row_end)
        if run.follows:
            tokens[end - 1, 1] = DRAWN_LAST
        if run.targets is not None:
            rows[own_rows, 1] = run.targets
        if run.masks is not None:  # `encode_masks` makes them later
            rows[own_rows, 2] = np.arange(num_masks, num_masks + run.rows)
            num_masks += run.rows
    return words


def encode_masks(batch: Batch, vocab_size: int) -> NDArray[np.uint32] | None:
    """Return the masks [rows, ceil(V / 32)] of the runs with a mask function; None if all tokens are allowed."""
    made = make_masks(batch, vocab_size)
    if all(own is None for own in made):
        return None
    all_allowed = np.uint32(NO_MASK)
    return np.concatenate(
        [
            np.full((run.rows, mask_words(vocab_size)), all_allowed) if own is None else own
            for run, own in zip(batch, made, strict=True)
            if run.masks is not None
        ]
    )


def decode_readout(
    answer: bytes, batch: Batch, limits: StepLimits, full_row: Callable[[int], F32], drawn: Sequence[Drawn]
) -> Readout:
    """Decode the `struct Readout` of each row in `answer`, and add `full_row` and `drawn`."""
    count = limits.num_candidates
    words = np.frombuffer(answer, np.uint32).reshape(-1, limits.readout_words)  # [R, words]
    floats = words.view(np.float32)
    logsumexp = floats[:, 0].copy()
    ids, logits = words[:, 5 : 5 + count].view(np.int32), floats[:, 5 + count :]
    if (words[:, 4] < count).any():
        is_taken = np.arange(count) < words[:, 4, np.newaxis]
        ids, logits = np.where(is_taken, ids, 0), np.where(is_taken, logits, np.float32(-np.inf))
    return Readout(
        ids=ids,
        logits=logits,
        logsumexp=logsumexp,
        allowed_logsumexp=floats[:, 1].copy(),
        target_logits=_target_logits(floats[:, 2], batch),
        sound=sound_runs(batch, (words[:, 3] == 0) & np.isfinite(logsumexp)),
        full_row=full_row,
        drawn=drawn,
    )


def _target_logits(logits: F32, batch: Batch) -> F32:
    """Return a copy of the target logits [R], with NaN for the rows of token runs that have no targets."""
    if all(run.targets is None for run in batch):
        return np.full_like(logits, np.nan)
    has_target = np.repeat([run.targets is not None for run in batch], [run.rows for run in batch])
    return np.where(has_target, logits, np.float32(np.nan))


# Sampling on the device: settings of draws are sent to it, and drawn tokens read; penalties are kept for each slot.

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
