"""Checks of the arguments of a runner's methods, for runners on any device: batches, slots, states and tickets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import InvalidRequestError, StateError, are_token_ids, check_range, check_token_ids
from rnn_engine.types import (
    Batch,
    DrawPenalties,
    LoraPairs,
    LoraRoom,
    ModelShape,
    State,
    Ticket,
    TokenDraw,
    TokenRun,
    mask_words,
    unpack_masks,
)
from rnn_engine_states.frozen import check_fields

T = TypeVar("T")


def check_batch(batch: Batch, shape: ModelShape, num_slots: int, max_tokens: int, max_rows: int) -> None:
    """Raise InvalidRequestError if a run is invalid or the batch too large. Draws and masks are checked apart."""
    if len(batch) == 0:
        raise InvalidRequestError("batch", list(batch), "at least one token run")
    _check_slots([run.slot for run in batch], num_slots)
    for position, run in enumerate(batch):
        _check_run(position, run, shape)
    if not are_token_ids(list(chain.from_iterable(run.tokens for run in batch)), shape.vocab_size):
        for position, run in enumerate(batch):
            check_token_ids(f"run {position}: token", run.tokens, shape.vocab_size)
    num_tokens, num_rows = sum(len(run.tokens) for run in batch), sum(run.rows for run in batch)
    for name, total, limit in (("tokens", num_tokens, max_tokens), ("rows", num_rows, max_rows)):
        if total > limit:
            raise InvalidRequestError(f"batch {name}", total, f"at most {limit} over all runs")


def check_draws(
    batch: Batch, vocab_size: int, max_draws: int = 0, num_penalty_slots: int = 0, max_logprobs: int = 0
) -> None:
    """Raise InvalidRequestError for a draw that the runner can't make; it draws at most `max_draws` tokens.

    Temperatures, penalties and the like are not checked: see `rnn_engine.sampling.samplers.choose_cuts`.
    """
    for position, run in enumerate(batch):
        if run.draw is not None:
            _check_draw(f"run {position}: draw", run, run.draw, vocab_size, max_draws, max_logprobs)
            if run.draw.penalties is not None:
                _check_penalties(f"run {position}", run, run.draw.penalties, vocab_size, num_penalty_slots)
        if run.follows and (run.draw is None or len(run.tokens) > 1):
            raise InvalidRequestError(
                f"run {position}: follows", True, "False, except for a run of one token with a draw"
            )
    if any(run.draw is not None and run.draw.count > 1 for run in batch):
        for position, run in enumerate(batch):
            if run.draw is None or len(run.tokens) > 1:
                allowed = "one token with a draw, since a run of the batch draws more than one token"
                raise InvalidRequestError(f"run {position}", run, allowed)


def check_loras(batch: Batch, room: LoraRoom) -> None:
    """Raise InvalidRequestError if the LoRA of a run is at none of the places of `room`."""
    for position, run in enumerate(batch):
        if run.lora is not None and not 0 <= run.lora < room.places:
            raise InvalidRequestError(f"run {position}: lora", run.lora, f"null, or a place below {room.places}")


def check_lora(place: int, lora: LoraPairs, room: LoraRoom) -> None:
    """Raise InvalidRequestError if `room` has no such place, or none that `lora` fits."""
    check_range("lora place", place, 0, room.places - 1)
    if (misfit := room.misfit(lora)) is not None:
        raise InvalidRequestError("lora", lora.digest, "a LoRA that fits", misfit)


def check_slot(slot: int, num_slots: int, field: str = "slot") -> None:
    """Raise InvalidRequestError if `slot` is not one of a runner's `num_slots` slots. The message calls it `field`."""
    if not 0 <= slot < num_slots:
        raise InvalidRequestError(field, slot, f"a slot from 0 to {num_slots - 1}")


def make_masks(batch: Batch, vocab_size: int) -> list[NDArray[np.uint32] | None]:
    """Call the mask function of each token run, and return for each run its masks [rows, ceil(V / 32)].

    None stands for masks that allow all tokens. Call this once a step. Raises InvalidRequestError for masks of another
    type or shape.
    """
    made = [None if run.masks is None else run.masks() for run in batch]
    for position, (run, masks) in enumerate(zip(batch, made, strict=True)):
        expected = (run.rows, mask_words(vocab_size))
        if masks is not None and (masks.dtype != np.uint32 or masks.shape != expected):
            raise InvalidRequestError(
                f"run {position}: masks", f"{masks.dtype} {masks.shape}", f"uint32 {expected}, or None"
            )
    return made


def allowed_tokens(batch: Batch, masks: Sequence[NDArray[np.uint32] | None], vocab_size: int) -> NDArray[np.bool_]:
    """Return which tokens [R, V] the masks, one item for each run, allow in the logit rows of `batch`."""
    allowed = [np.ones((0, vocab_size), np.bool_)]
    for run, own in zip(batch, masks, strict=True):
        allowed.append(np.ones((run.rows, vocab_size), np.bool_) if own is None else unpack_masks(own, vocab_size))
    return np.concatenate(allowed)


def sound_runs(batch: Batch, finite: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a boolean array [B]: True if all rows of the token run are `finite` [R]."""
    if finite.all():
        return np.ones(len(batch), np.bool_)
    num_rows = np.array([run.rows for run in batch])
    num_wrong = np.concatenate(([0], (~finite).cumsum()))  # [R + 1] in the rows before
    ends = num_rows.cumsum()
    sound: NDArray[np.bool_] = num_wrong[ends] == num_wrong[ends - num_rows]
    return sound


def check_state(state: State, shape: ModelShape) -> None:
    """Raise StateError if the fields, shapes or types of `state`, a state for a slot, don't fit the model."""
    check_fields(state, shape, "state")
    for name, values in state.items():
        if values.dtype != np.float32:
            raise StateError(f"state {name}: type {values.dtype} is not allowed; expected float32")


def take_oldest(in_flight: dict[Ticket, T], ticket: Ticket) -> T:
    """Remove and return the oldest step in flight. Raises InvalidRequestError if `ticket` is another one."""
    oldest = next(iter(in_flight), None)
    if ticket != oldest:
        allowed = "no ticket: no step is in flight" if oldest is None else f"{oldest}, the oldest not yet collected"
        raise InvalidRequestError("ticket", ticket, allowed)
    return in_flight.pop(ticket)


def _check_run(position: int, run: TokenRun, shape: ModelShape) -> None:
    """Raise InvalidRequestError if the run at `position` is invalid, except for its slot and its token ids."""
    length = len(run.tokens)
    if length == 0:
        raise InvalidRequestError(f"run {position}: tokens", list(run.tokens), "at least one token")
    if not 0 <= run.rows <= length:
        raise InvalidRequestError(f"run {position}: rows", run.rows, f"a number from 0 to {length}, its token count")
    if run.targets is not None:
        if len(run.targets) != run.rows:
            allowed = f"one id for each of its {run.rows} rows"
            raise InvalidRequestError(f"run {position}: targets", list(run.targets), allowed)
        check_token_ids(f"run {position}: target", run.targets, shape.vocab_size)


def _check_draw(name: str, run: TokenRun, draw: TokenDraw, vocab_size: int, max_draws: int, max_logprobs: int) -> None:
    if max_draws == 0:
        raise InvalidRequestError(name, draw, "null, since this runner can't draw tokens")
    if run.rows == 0 or run.masks is not None:
        raise InvalidRequestError(name, draw, "null for a run without rows or with masks")
    if not 1 <= draw.count <= max_draws:
        check_range(f"{name} count", draw.count, 1, max_draws)
    if draw.logprobs is not None:
        check_range(f"{name} logprobs", draw.logprobs, 0, max_logprobs)
    if draw.halts is not None and (draw.halts.dtype != np.uint32 or draw.halts.shape != (mask_words(vocab_size),)):
        expected = (mask_words(vocab_size),)
        raise InvalidRequestError(f"{name} halts", f"{draw.halts.dtype} {draw.halts.shape}", f"uint32 {expected}")


def _check_penalties(name: str, run: TokenRun, penalties: DrawPenalties, vocab_size: int, num_slots: int) -> None:
    name = f"{name}: draw penalties"
    if run.slot >= num_slots:
        raise InvalidRequestError(
            name, penalties, f"null, since only the first {num_slots} slots of this runner have penalties"
        )
    for part, row, dtype in (("earlier", penalties.earlier, np.float32), ("seen", penalties.seen, np.uint32)):
        if row is not None and (row.dtype != dtype or row.shape != (vocab_size,)):
            expected = f"{np.dtype(dtype)} {(vocab_size,)}"
            raise InvalidRequestError(f"{name}: {part}", f"{row.dtype} {row.shape}", expected)


def _check_slots(slots: Sequence[int], num_slots: int) -> None:
    seen: set[int] = set()
    for position, slot in enumerate(slots):
        if not 0 <= slot < num_slots:
            check_slot(slot, num_slots, f"run {position}: slot")
        if slot in seen:
            raise InvalidRequestError(f"run {position}: slot", slot, "a slot that no other run of the batch has")
        seen.add(slot)
