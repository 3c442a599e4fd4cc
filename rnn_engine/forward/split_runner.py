"""The runner of a model with layers on several devices: it has a runner for each part, and passes on their outputs.

A step runs device after device. A few vectors a token cross a cut: the residual stream, and what a version's layers
read besides it. States stay on the devices of their layers. While the last device computes a step, the others compute
the next one, so that two steps in flight keep two devices busy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Protocol

import numpy as np

from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward.contract import check_batch, check_draws, check_lora, check_slot, check_state
from rnn_engine.types import (
    F32,
    Batch,
    LoraPairs,
    LoraRoom,
    ModelShape,
    PendingState,
    Readout,
    Runner,
    State,
    Ticket,
    Trace,
)


class PartRunner(Runner, Protocol):
    """A runner of some layers of a model that follow one another.

    Only the last part has rows. Each but the first takes what the part before it has `carried` on, [T, D] each: the
    residual stream first.
    """

    def submit(self, batch: Batch, carried: Sequence[F32] = ()) -> Ticket: ...

    def carry(self, num_tokens: int) -> list[F32]:
        """Wait for the last submitted step, which had `num_tokens` tokens, and return what the next part takes."""

    def trace(self, batch: Batch, layers: Collection[int], carried: Sequence[F32] = ()) -> Trace: ...


class SplitRunner:
    """A `Runner` of a model with parts on several devices. The last one draws tokens if it can, one for each run."""

    def __init__(self, shape: ModelShape, parts: Sequence[PartRunner]) -> None:
        """Run a model of this `shape` with `parts`, in the order of their layers, which `close` closes."""
        self.shape = shape
        self.parts = tuple(parts)
        ends = np.cumsum([part.shape.num_layers for part in parts]).tolist()
        self.layers = tuple(map(range, [0, *ends], ends))  # of each part
        self.num_slots = min(part.num_slots for part in parts)
        self.max_tokens = min(part.max_tokens for part in parts)
        self.max_rows = parts[-1].max_rows
        self.max_draws = min(parts[-1].max_draws, 1)  # the first device takes the token that is drawn
        self.max_draw_logprobs = parts[-1].max_draw_logprobs
        self.num_penalty_slots = parts[-1].num_penalty_slots
        self.steps_at_once = 2
        self._own = tuple(zip(self.parts, self.layers, strict=True))

    def submit(self, batch: Batch) -> Ticket:
        """See `Runner`. Waits until all devices but the last have computed the step."""
        num_tokens = self._check(batch)
        carried: Sequence[F32] = ()
        for part in self.parts[:-1]:
            part.collect(part.submit(self._runs_of(part, batch), carried))
            carried = part.carry(num_tokens)
        return self.parts[-1].submit(self._runs_of(self.parts[-1], batch), carried)

    @property
    def lora_room(self) -> LoraRoom:
        matrices: dict[str, tuple[int, int]] = {}
        for part, own in self._own:
            matrices |= {self._moved(name, own.start): size for name, size in part.lora_room.matrices.items()}
        return replace(self.parts[0].lora_room, matrices=matrices)

    def write_lora(self, place: int, lora: LoraPairs) -> None:
        check_lora(place, lora, self.lora_room)
        for part, own in self._own:
            names = {self._moved(name, own.start): name for name in part.lora_room.matrices}
            pairs = {names[name]: pair for name, pair in lora.pairs.items() if name in names}
            part.write_lora(place, replace(lora, pairs=pairs))

    def _moved(self, name: str, num_layers: int) -> str:
        """Return the name in the whole model of a part's matrix, before which the model has `num_layers` layers."""
        prefix = self.shape.tensor_names.layers
        layer, dot, rest = name.removeprefix(prefix).partition(".")
        return f"{prefix}{int(layer) + num_layers}{dot}{rest}"

    def collect(self, ticket: Ticket) -> Readout:
        return self.parts[-1].collect(ticket)

    def trace(self, batch: Batch, layers: Collection[int]) -> Trace:
        num_tokens = self._check(batch)
        carried: Sequence[F32] = ()
        hidden: dict[int, F32] = {}
        for part, own in self._own:
            traced = part.trace(
                self._runs_of(part, batch), [layer - own.start for layer in layers if layer in own], carried
            )
            hidden.update({layer + own.start: x for layer, x in traced.hidden.items()})
            carried = () if part is self.parts[-1] else part.carry(num_tokens)
        return Trace(traced.logits, hidden)

    def write_state(self, slot: int, state: State | None) -> None:
        check_slot(slot, self.num_slots)
        if state is not None:
            check_state(state, self.shape)
        for part, own in self._own:
            layers = slice(own.start, own.stop)
            part.write_state(slot, None if state is None else {name: each[layers] for name, each in state.items()})

    def start_read(self, slot: int) -> PendingState:
        check_slot(slot, self.num_slots)
        return _SplitState([part.start_read(slot) for part in self.parts])

    def read_state(self, slot: int) -> dict[str, F32]:
        return self.start_read(slot).result()

    def copy_state(self, source: int, target: int) -> None:
        check_slot(source, self.num_slots, "source slot")
        check_slot(target, self.num_slots, "target slot")
        for part in self.parts:
            part.copy_state(source, target)

    @contextmanager
    def together(self) -> Iterator[None]:
        with ExitStack() as all_parts:
            for part in self.parts:
                all_parts.enter_context(part.together())
            yield

    def close(self) -> None:
        with ExitStack() as all_parts:
            for part in self.parts:
                all_parts.callback(part.close)

    def _check(self, batch: Batch) -> int:
        """Check `batch`, and return the number of its tokens."""
        check_batch(batch, self.shape, self.num_slots, self.max_tokens, self.max_rows)
        check_draws(
            batch, self.shape.vocab_size, self.max_draws, self.num_penalty_slots, max_logprobs=self.max_draw_logprobs
        )
        for position, run in enumerate(batch):
            if run.follows:
                allowed = "False, since the first of several devices has no token that the last one draws"
                raise InvalidRequestError(f"run {position}: follows", True, allowed)
        return sum(len(run.tokens) for run in batch)

    def _runs_of(self, part: PartRunner, batch: Batch) -> Batch:
        """Return the runs of `batch` for a part: only the last one has rows."""
        if part is self.parts[-1]:
            return batch
        return [replace(run, rows=0, targets=None, masks=None, draw=None) for run in batch]


class _SplitState:
    """A `PendingState` of all parts."""

    def __init__(self, parts: Sequence[PendingState]) -> None:
        self._parts = parts

    def done(self) -> bool:
        return all(part.done() for part in self._parts)

    def result(self) -> dict[str, F32]:
        found = [part.result() for part in self._parts]
        return {name: np.concatenate([layers[name] for layers in found]) for name in found[0]}
