"""Limits and buffers of steps, the encoding of batches (batch.wgsl), and the decoding of read-outs (readout.wgsl)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rnn_engine.forward.contract import make_masks, sound_runs
from rnn_engine.forward.weight_formats import round_up
from rnn_engine.gpu import Buffer, Memory
from rnn_engine.types import (
    F32,
    MOST_DRAW_BIASES,
    MOST_DRAW_LOGPROBS,
    MOST_DRAWS,
    Batch,
    Drawn,
    ModelShape,
    Readout,
    mask_words,
)
from rnn_engine_shaders import Constant


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
