"""Runs a model with numpy behind the same protocol as a GPU: for machines without one, and to compare with."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StepError
from rnn_engine.forward.contract import (
    check_batch,
    check_draws,
    check_slot,
    check_state,
    given_ids,
    given_rows,
    make_masks,
    take_oldest,
)
from rnn_engine.forward.host_readout import read_out
from rnn_engine.reference.functions import project_to_logits
from rnn_engine.reference.runs import RunLayers
from rnn_engine.reference.weights import Weights
from rnn_engine.types import (
    F32,
    Batch,
    Model,
    ModelShape,
    PendingState,
    Readout,
    ReadyState,
    State,
    Ticket,
    TokenRun,
)


class CpuRunner:
    """A `Runner` in f32. The model may be closed once this exists; weights are cast to f32 when first used."""

    def __init__(
        self,
        model: Model,
        run_layers: RunLayers,
        *,
        num_slots: int = 8,
        max_tokens: int = 256,
        max_rows: int = 64,
        num_candidates: int = 128,
    ) -> None:
        """`num_candidates` is K of the read-outs, or the vocabulary where that is smaller."""
        self._shape = model.shape
        self._run_layers = run_layers
        self._num_slots = num_slots
        self._max_tokens = max_tokens
        self._max_rows = max_rows
        self._num_candidates = min(num_candidates, model.shape.vocab_size)
        self._weights: Weights | None = Weights(
            model.shape, {name: model.tensor(name) for name in model.names}.__getitem__
        )
        self._initial = model.shape.initial_state()  # field -> [L, ...]
        self._numbers = itertools.count()
        self._in_flight: dict[Ticket, Readout] = {}
        self._live = {name: np.stack([values] * num_slots) for name, values in self._initial.items()}  # [S, L, ...]

    @property
    def shape(self) -> ModelShape:
        return self._shape

    @property
    def num_slots(self) -> int:
        return self._num_slots

    @property
    def max_tokens(self) -> int:
        return self._max_tokens

    @property
    def max_rows(self) -> int:
        return self._max_rows

    @property
    def max_draws(self) -> int:
        return 0

    @property
    def max_draw_logprobs(self) -> int:
        return 0

    @property
    def num_penalty_slots(self) -> int:
        return 0

    @np.errstate(over="ignore", invalid="ignore")  # the read-out says whose rows are not finite
    def submit(self, batch: Batch) -> Ticket:
        check_batch(batch, self._shape, self._num_slots, self._max_tokens, self._max_rows)
        check_draws(batch, self._shape.vocab_size)
        if self._weights is None:
            raise StepError("the runner is closed")
        slots = [run.slot for run in batch]
        ids = given_ids(batch, self._shape.vocab_size)
        tokens = np.concatenate([np.asarray(run_ids, np.intp) for run_ids in ids])  # [T]
        given = given_rows(batch)
        weights = self._weights if given is None else self._weights.with_rows("emb.weight", given)
        lengths = [len(run.tokens) for run in batch]
        before = {name: values[slots] for name, values in self._live.items()}
        hidden, after = self._run_layers(weights, tokens, lengths, before)  # [T, D]
        for name, values in after.items():
            self._live[name][slots] = values
        logits = project_to_logits(self._weights, hidden[_row_positions(batch)])  # [R, V]
        masks = make_masks(batch, self._shape.vocab_size)
        ticket = Ticket(next(self._numbers))
        self._in_flight[ticket] = read_out(batch, masks, logits, self._num_candidates, lambda row: logits[row].copy())
        return ticket

    def collect(self, ticket: Ticket) -> Readout:
        return take_oldest(self._in_flight, ticket)

    def write_state(self, slot: int, state: State | None) -> None:
        check_slot(slot, self._num_slots)
        if state is not None:
            check_state(state, self._shape)
        for name, values in (self._initial if state is None else state).items():
            self._live[name][slot] = values

    def start_read(self, slot: int) -> PendingState:
        return ReadyState(self.read_state(slot))

    def read_state(self, slot: int) -> dict[str, F32]:
        check_slot(slot, self._num_slots)
        return {name: values[slot].copy() for name, values in self._live.items()}

    def copy_state(self, source: int, target: int) -> None:
        check_slot(source, self._num_slots, "source slot")
        check_slot(target, self._num_slots, "target slot")
        for values in self._live.values():
            values[target] = values[source]

    def close(self) -> None:
        self._weights = None


def _row_positions(batch: Sequence[TokenRun]) -> NDArray[np.intp]:
    """Where on the token axis the rows are: the last `rows` tokens of each run. [R]"""
    ends = np.cumsum([len(run.tokens) for run in batch])
    return np.concatenate([np.arange(end - run.rows, end) for run, end in zip(batch, ends, strict=True)])
