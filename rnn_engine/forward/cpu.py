"""A runner that computes with numpy, for machines without a GPU and as the reference for the GPU's results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StepError
from rnn_engine.forward.contract import (
    allowed_tokens,
    check_batch,
    check_draws,
    check_lora,
    check_loras,
    check_slot,
    check_state,
    make_masks,
    sound_runs,
    take_oldest,
)
from rnn_engine.reference import PackedRuns, RunLayers, Watch, Weights, ignore_layer, project_to_logits
from rnn_engine.reference.threads import matmul_threads
from rnn_engine.types import (
    F32,
    NO_LORAS,
    Batch,
    LoraPairs,
    LoraRoom,
    PendingState,
    Readout,
    ReadyState,
    State,
    Ticket,
    Trace,
)


def read_out(
    batch: Batch,
    masks: Sequence[NDArray[np.uint32] | None],
    logits: F32,
    num_candidates: int,
    full_row: Callable[[int], F32],
) -> Readout:
    """Return the read-out of a step from its logits [R, V]: for each row the top tokens, log-sum-exp and target logit.

    `num_candidates` top tokens are read of each row, as allowed by `masks`, which has one item a run. `full_row`
    returns all logits of a row.
    """
    has_masks = any(own is not None for own in masks)
    allowed = allowed_tokens(batch, masks, logits.shape[-1])  # [R, V]
    allowed_logits = np.where(allowed & ~np.isnan(logits), logits, np.float32(-np.inf))
    ids = np.empty((len(logits), num_candidates), np.int32)  # [R, K]
    for row, values in enumerate(allowed_logits):
        least = np.partition(values, -num_candidates)[-num_candidates]
        among = np.flatnonzero(values >= least)  # ascending; more than K if others equal the least
        ids[row] = among[np.argsort(-values[among], kind="stable")[:num_candidates]]
    is_token = np.take_along_axis(allowed, ids, axis=-1)
    targets = [target for run in batch for target in (run.targets if run.targets is not None else [None] * run.rows)]
    with np.errstate(invalid="ignore", divide="ignore"):  # rows that are not finite
        logsumexp = _logsumexp(logits)
        allowed_logsumexp = _logsumexp(allowed_logits) if has_masks else logsumexp
    return Readout(
        ids=np.where(is_token, ids, 0),
        logits=np.where(is_token, np.take_along_axis(logits, ids, axis=-1), np.float32(-np.inf)),
        logsumexp=logsumexp,
        allowed_logsumexp=allowed_logsumexp,
        target_logits=np.array(
            [np.nan if target is None else row[target] for row, target in zip(logits, targets, strict=True)], np.float32
        ),
        sound=sound_runs(batch, np.isfinite(logits).all(axis=-1) & np.isfinite(logsumexp)),
        full_row=full_row,
    )


def _logsumexp(logits: F32) -> F32:
    """Return the log-sum-exp [R] of each row of `logits` [R, V]."""
    peak = logits.max(axis=-1)
    total = np.exp(logits - peak[:, np.newaxis]).sum(axis=-1, dtype=np.float64)
    return np.asarray(peak + np.log(total), np.float32)


class CpuRunner:
    """A `Runner` on the processor, in numpy and f32 except for the matmuls of its `Weights`.

    It may have a part of a model (see `rnn_engine.forward.split_runner`).
    """

    def __init__(
        self,
        weights: Weights,
        run_layers: RunLayers,
        *,
        num_slots: int = 8,
        max_tokens: int = 256,
        max_rows: int = 64,
        num_candidates: int = 128,
        lora_room: LoraRoom = NO_LORAS,
    ) -> None:
        """Prepare to run a model with `num_slots` slots; a read-out has up to `num_candidates` top tokens a row."""
        self.shape = weights.shape
        self.num_slots = num_slots
        self.max_tokens = max_tokens
        self.max_rows = max_rows
        self.max_draws = self.max_draw_logprobs = self.num_penalty_slots = 0  # it draws no tokens
        self.steps_at_once = 1
        self._run_layers = run_layers
        self._num_candidates = min(num_candidates, self.shape.row_size)
        self._weights: Weights | None = weights
        self._initial = self.shape.initial_state()  # field -> [L, ...]
        self._numbers = itertools.count()
        self._in_flight: dict[Ticket, Readout] = {}
        self._live: dict[str, F32] = {}  # field -> [S, L, ...]
        for name, values in self._initial.items():
            live = np.zeros((len(values), num_slots, *values.shape[1:]), np.float32)  # slots of a layer side by side
            if values.any():  # zeros that nothing is written to take no memory
                live += values[:, np.newaxis]
            self._live[name] = live.swapaxes(0, 1)
        self._carried: list[F32] = []
        self.lora_room = lora_room
        self._loras: dict[int, LoraPairs] = {}  # by place

    @np.errstate(over="ignore", invalid="ignore")  # the read-out says whose rows are not finite
    def submit(self, batch: Batch, carried: Sequence[F32] = ()) -> Ticket:
        check_draws(batch, self.shape.vocab_size)
        logits = self._run(batch, ignore_layer, carried)
        masks = make_masks(batch, self.shape.vocab_size)
        ticket = Ticket(next(self._numbers))
        self._in_flight[ticket] = read_out(batch, masks, logits, self._num_candidates, lambda row: logits[row].copy())
        return ticket

    def write_lora(self, place: int, lora: LoraPairs) -> None:
        check_lora(place, lora, self.lora_room)
        self._loras[place] = lora

    def carry(self, num_tokens: int) -> list[F32]:
        return [rows[:num_tokens] for rows in self._carried]

    @np.errstate(over="ignore", invalid="ignore")
    def trace(self, batch: Batch, layers: Collection[int], carried: Sequence[F32] = ()) -> Trace:
        hidden: dict[int, F32] = {}

        def watch(layer: int, x: F32) -> None:
            if layer in layers:
                hidden[layer] = x

        return Trace(self._run(batch, watch, carried), hidden)

    def _run(self, batch: Batch, watch: Watch, carried: Sequence[F32]) -> F32:
        """Run the tokens of `batch`, advance the states of its slots, and return the logits of its rows [R, V]."""
        check_batch(batch, self.shape, self.num_slots, self.max_tokens, self.max_rows)
        check_loras(batch, self.lora_room)
        if self._weights is None:
            raise StepError("the runner is closed")
        slots = [run.slot for run in batch]
        tokens = np.concatenate([np.asarray(run.tokens, np.intp) for run in batch])  # [T]
        lengths = [len(run.tokens) for run in batch]
        first, end = slots[0], slots[0] + len(slots)
        chosen = slice(first, end) if slots == [*range(first, end)] else slots  # a slice copies nothing
        before = {name: values[chosen] for name, values in self._live.items()}  # [B, L, ...]
        ends = np.cumsum(lengths).tolist()
        loras = [
            (slice(end - len(run.tokens), end), self._loras[run.lora])
            for run, end in zip(batch, ends, strict=True)
            if run.lora in self._loras
        ]
        with matmul_threads(self.shape):
            weights = self._weights.watched(watch).carrying(carried).with_loras(loras)
            runs = PackedRuns.of(lengths, in_place=True)
            hidden, after = self._run_layers(weights, tokens, runs, before)  # [T, D]
            for name, layers in after.items():
                for layer, values in enumerate(layers):
                    if not np.may_share_memory(values, self._live[name]):
                        self._live[name][chosen, layer] = values
            # a run's rows belong to its last `rows` tokens
            rows = np.concatenate([np.arange(end - run.rows, end) for run, end in zip(batch, ends, strict=True)])
            self._carried = [hidden, *(carried[1:] or weights.kept or ())]
            if not len(rows):
                return np.empty((0, self.shape.row_size), np.float32)
            logits: F32 = project_to_logits(self._weights, hidden[rows])
        return logits

    def collect(self, ticket: Ticket) -> Readout:
        return take_oldest(self._in_flight, ticket)

    def write_state(self, slot: int, state: State | None) -> None:
        check_slot(slot, self.num_slots)
        if state is not None:
            check_state(state, self.shape)
        for name, values in (self._initial if state is None else state).items():
            self._live[name][slot] = values

    def start_read(self, slot: int) -> PendingState:
        return ReadyState(self.read_state(slot))

    def read_state(self, slot: int) -> dict[str, F32]:
        check_slot(slot, self.num_slots)
        return {name: values[slot].copy() for name, values in self._live.items()}

    def copy_state(self, source: int, target: int) -> None:
        check_slot(source, self.num_slots, "source slot")
        check_slot(target, self.num_slots, "target slot")
        for values in self._live.values():
            values[target] = values[source]

    together = nullcontext

    def close(self) -> None:
        self._weights = None
