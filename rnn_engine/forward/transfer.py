"""A batch as the words of batch.wgsl, and a read-out from the words of readout.wgsl."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rnn_engine.draws import Drawn
from rnn_engine.forward.contract import given_ids, make_masks, sound_runs
from rnn_engine.forward.step import StepLimits
from rnn_engine.types import F32, I32, Batch, Readout, mask_words

HEADER_WORDS, RUN_WORDS, ROW_WORDS, TOKEN_WORDS = 4, 4, 3, 2
NO_MASK = DRAWN_LAST = 0xFFFFFFFF


def encode_batch(batch: Batch, limits: StepLimits, shift_sides: Sequence[int], vocab_size: int) -> NDArray[np.uint32]:
    """The words of `struct Batch` up to its last token."""
    ids = given_ids(batch, vocab_size)
    slots = [run.slot for run in batch]
    lengths = np.array([len(run_ids) for run_ids in ids])
    num_rows = np.array([run.rows for run in batch])
    ends, row_ends = lengths.cumsum(), num_rows.cumsum()
    rows_start = HEADER_WORDS + RUN_WORDS * limits.num_slots
    tokens_start = rows_start + ROW_WORDS * limits.max_rows
    words = np.zeros(tokens_start + TOKEN_WORDS * ends.item(-1), np.uint32)
    words[:3] = ends.item(-1), len(batch), row_ends.item(-1)
    runs = words[HEADER_WORDS:rows_start].reshape(-1, RUN_WORDS)
    rows = words[rows_start:tokens_start].reshape(-1, ROW_WORDS)
    tokens = words[tokens_start:].reshape(-1, TOKEN_WORDS)
    runs[: len(batch)] = np.stack(
        [slots, ends - lengths, lengths, np.array([shift_sides[slot] for slot in slots])], axis=1
    )
    tokens[:, 0] = np.arange(len(batch)).repeat(lengths)
    tokens[:, 1] = list(chain.from_iterable(ids))
    rows[: row_ends[-1], 0] = (ends - row_ends).repeat(num_rows) + np.arange(row_ends[-1])
    rows[:, 2] = NO_MASK
    num_masks = 0
    for run, end, row_end in zip(batch, ends.tolist(), row_ends.tolist(), strict=True):
        own_rows = slice(row_end - run.rows, row_end)
        if run.follows:
            tokens[end - 1, 1] = DRAWN_LAST
        if run.targets is not None:
            rows[own_rows, 1] = run.targets
        if run.masks is not None:  # they are made later
            rows[own_rows, 2] = np.arange(num_masks, num_masks + run.rows)
            num_masks += run.rows
    return words


def encode_masks(batch: Batch, vocab_size: int) -> NDArray[np.uint32] | None:
    """Make the masks of all runs that may have some, and return them in order; None where all tokens are allowed."""
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
    """The read-out of `batch` from its rows' `struct Readout`, with what was `drawn`."""
    count = limits.num_candidates
    words = np.frombuffer(answer, np.uint32).reshape(-1, limits.readout_words)  # [R, words]
    floats = words.view(np.float32)
    logsumexp = floats[:, 0].copy()
    ids: I32 = words[:, 5 : 5 + count].view(np.int32)
    logits = floats[:, 5 + count :]
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
    """Return `logits` [R], NaN in the rows of runs without targets."""
    if all(run.targets is None for run in batch):
        return np.full_like(logits, np.nan)
    has_target = np.repeat([run.targets is not None for run in batch], [run.rows for run in batch])
    return np.where(has_target, logits, np.float32(np.nan))
