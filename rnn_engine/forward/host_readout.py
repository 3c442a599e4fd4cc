"""The read-out of a step whose logits are on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rnn_engine.forward.contract import allowed_tokens, sound_runs
from rnn_engine.types import F32, I32, Batch, Readout


def read_out(
    batch: Batch,
    masks: Sequence[NDArray[np.uint32] | None],
    logits: F32,
    num_candidates: int,
    full_row: Callable[[int], F32],
) -> Readout:
    """What a step says of its rows' `logits` [R, V], with K = `num_candidates`; `masks` are those of its runs."""
    has_masks = any(own is not None for own in masks)
    allowed = allowed_tokens(batch, masks, logits.shape[-1])  # [R, V]
    allowed_logits = np.where(allowed & ~np.isnan(logits), logits, np.float32(-np.inf))
    ids = np.empty((len(logits), num_candidates), np.int32)  # [R, K]
    for row, values in enumerate(allowed_logits):
        ids[row] = _greatest(values, num_candidates)
    is_token = np.take_along_axis(allowed, ids, axis=-1)
    targets = zip(logits, _row_targets(batch), strict=True)
    with np.errstate(invalid="ignore", divide="ignore"):  # rows that are not finite
        logsumexp = _logsumexp(logits)
        allowed_logsumexp = _logsumexp(allowed_logits) if has_masks else logsumexp
    return Readout(
        ids=np.where(is_token, ids, 0),
        logits=np.where(is_token, np.take_along_axis(logits, ids, axis=-1), np.float32(-np.inf)),
        logsumexp=logsumexp,
        allowed_logsumexp=allowed_logsumexp,
        target_logits=np.array([np.nan if target is None else row[target] for row, target in targets], np.float32),
        sound=sound_runs(batch, np.isfinite(logits).all(axis=-1) & np.isfinite(logsumexp)),
        full_row=full_row,
    )


def _row_targets(batch: Batch) -> list[int | None]:
    """The target of each row, None where its run has none. [R]"""
    return [target for run in batch for target in (run.targets if run.targets is not None else [None] * run.rows)]


def _greatest(row: F32, count: int) -> I32:
    """Ids of the `count` greatest of row [V], greatest first, equal ones by ascending id."""
    least = np.partition(row, len(row) - count)[len(row) - count]
    ids = np.flatnonzero(row >= least).astype(np.int32)  # ascending; more than `count` where others equal the least
    return ids[np.argsort(-row[ids], kind="stable")[:count]]


def _logsumexp(logits: F32) -> F32:
    """[R, V] -> [R]"""
    peak = logits.max(axis=-1)
    total = np.exp(logits - peak[:, np.newaxis]).sum(axis=-1, dtype=np.float64)
    return np.asarray(peak + np.log(total), np.float32)
