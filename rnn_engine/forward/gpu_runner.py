"""The runner of a model on a GPU. It executes one batch of token runs (consecutive tokens of a slot) in each step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import accumulate

import numpy as np

from rnn_engine.errors import DeviceError, InvalidRequestError, StepError
from rnn_engine.forward.contract import (
    check_batch,
    check_draws,
    check_lora,
    check_loras,
    check_slot,
    check_state,
    take_oldest,
)
from rnn_engine.forward.forward_pass import ForwardPass, LoadLayers, Progress
from rnn_engine.forward.loras import DeviceLoras
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.slot_states import SlotStates
from rnn_engine.forward.step import (
    DeviceDraws,
    StepLimits,
    StepSize,
    count_draws,
    decode_draws,
    decode_readout,
    encode_batch,
    encode_masks,
)
from rnn_engine.forward.weight_choice import FormatOf
from rnn_engine.gpu import BufferCopy, Device, Memory, Plan, ReadBack, Recorder
from rnn_engine.types import (
    F32,
    NO_LORAS,
    Batch,
    DeviceMemory,
    Drawn,
    LoraPairs,
    LoraRoom,
    Model,
    PendingState,
    Readout,
    State,
    Ticket,
    TokenDraw,
    TokenRun,
    Trace,
    mask_words,
    run_step,
)


class OpenRuns:
    """Records the open token runs: those in flight for which the device has not yet reported how many tokens it drew.

    A run with a draw counts as complete until then, so that a run that follows it can be submitted at once. On the
    device it does nothing if the run before is not complete. Each drawn token swaps the side of the slot's state from
    which the next step reads the token shifts. After the report, `close` corrects these sides.
    """

    def __init__(self, states: SlotStates) -> None:
        self._states = states
        self._steps: dict[Ticket, dict[int, TokenRun]] = {}  # open runs by slot, of each step in flight, oldest first
        self._followable: set[int] = set()  # slots whose last run has a draw

    def check(self, batch: Batch) -> None:
        """Raise InvalidRequestError if a token run of `batch` `follows` another one in its slot that has no draw."""
        for position, run in enumerate(batch):
            if run.follows and run.slot not in self._followable:
                raise InvalidRequestError(
                    f"run {position}: follows", True, "False, since the last run of its slot has no draw"
                )

    def add(self, ticket: Ticket, batch: Batch) -> None:
        """Record the token runs of `batch`, submitted as `ticket`, as if each draw had drawn all the tokens it may."""
        self._steps[ticket] = {}
        for run in batch:
            if run.draw is None:
                self._states.advance(run.slot)
                self._followable.discard(run.slot)
                continue
            self._states.advance(run.slot, run.draw.count)
            self._followable.add(run.slot)
            if run.draw.count > 1 or run.follows:
                self._steps[ticket][run.slot] = run

    def close(self, ticket: Ticket, batch: Batch, drawn: Sequence[Drawn]) -> None:
        """After a step, correct which side of the token shifts each slot reads next, now that its draws are known.

        The step is the oldest in flight. `drawn` has one item for each run of `batch`; it is empty if the step failed.
        """
        own = self._steps.pop(ticket)
        for run, one in zip(batch, drawn, strict=False):
            if run.slot in own:
                self._correct(run, one.num_run)
            if not one.goes_on:
                for later in self._steps.values():
                    if (follower := later.get(run.slot)) is not None and follower.follows:
                        self._correct(follower, 0)
                        del later[run.slot]

    def forget(self, slot: int) -> None:
        """Drop the records of all token runs in `slot`, because another state is written to it."""
        self._followable.discard(slot)
        for step in self._steps.values():
            step.pop(slot, None)

    def any_in(self, slots: Iterable[int]) -> bool:
        """Return True if any of `slots` has an open token run: one whose number of drawn tokens is not known yet."""
        return any(slot in step for slot in slots for step in self._steps.values())

    def _correct(self, run: TokenRun, num_run: int) -> None:
        assert run.draw is not None
        self._states.advance(run.slot, run.draw.count - num_run)


_PLANS = 256  # that are kept; each combination of token, run and row counts and side has its own
_MAX_IN_FLIGHT = 2
_ROWS_BYTES = 16 << 20  # of whole rows that are read at once


@dataclass(slots=True, eq=False)
class _Step:
    """A submitted step and its results. Even tickets use side 0 of the double buffers, others side 1."""

    ticket: Ticket
    batch: Batch
    submission: int
    download: ReadBack | None  # of the read-outs and draws; None if the step has no rows
    answer: bytes = field(default=b"", init=False)  # the downloaded read-outs
    rows: dict[int, F32] = field(default_factory=dict, init=False)  # number -> logits [V], of those that were read
    drawn: Sequence[Drawn] = field(default=(), init=False)  # from the same download
    error: DeviceError | None = field(default=None, init=False)

    @property
    def side(self) -> int:
        return self.ticket.number % 2

    def likely_after(self, row: int) -> list[int]:
        """Return the rows likely to be read after `row`, if that was likely too."""
        ends = accumulate(run.rows for run in self.batch)
        likely = [end - 1 for end, run in zip(ends, self.batch, strict=True) if run.reads_row]
        return likely[likely.index(row) + 1 :] if row in likely else []


class GpuRunner:
    """A `Runner` on a GPU of a model, or of a part of one (see `rnn_engine.forward.split_runner`).

    It frees its device memory at `close`; other models may use the same device.

    The buffers that the device writes and the host reads, logits and answer, exist twice.
    The buffers that the host writes exist once: uploads and submissions run in the order of the calls, so a step's
    batch can't overtake the step before.
    """

    def __init__(
        self,
        model: Model,
        load_layers: LoadLayers,
        device: Device,
        memory: Memory,
        matmuls: MatMulKernels,
        *,
        format_of: FormatOf,
        limits: StepLimits,
        progress: Progress,
        lora_room: LoraRoom = NO_LORAS,
    ) -> None:
        """Upload `model`, which may be closed afterwards, and allocate the device buffers for steps.

        `matmuls` are kernels of `device` for steps of `limits`, with the pairs for `lora_room`.
        `memory` is an empty group of buffers of `device`. The caller closes it if this fails, else the runner does.
        Raises DeviceMemoryError if the device has no room, DeviceError if it can't run the model.
        """
        self.device = device
        self.matmuls = matmuls
        self.shape = model.shape
        self.num_slots = limits.num_slots
        self.max_tokens = limits.max_tokens
        self.max_rows = limits.max_rows
        self.max_draws = limits.max_draws
        self.max_draw_logprobs = limits.max_logprobs
        self.num_penalty_slots = limits.num_penalty_slots
        self.steps_at_once = 1
        self._memory = memory
        self._limits = limits
        self._closed = False
        self._recorder = Recorder(device)
        self._forward = ForwardPass(model, memory, matmuls, limits, load_layers, format_of, progress)
        answer_bytes = 4 * (limits.max_rows * (limits.readout_words + limits.draw_words) + limits.told_words)
        self._answers = [memory.create_buffer("answer", answer_bytes, mappable=True) for _ in range(2)]
        self._states = SlotStates(
            self._forward.states,
            self._forward.state_layout,
            self.shape.initial_state(),
            limits.num_slots,
            device,
            memory,
        )
        self.together = self._states.together
        self._loras = DeviceLoras(lora_room, matmuls, memory)
        self._draws = DeviceDraws(self._forward.buffers, self.shape.vocab_size, limits, memory)
        self._open = OpenRuns(self._states)
        self._num_submitted = 0
        self._unfinished: deque[_Step] = deque()  # steps that the device may not have done yet; at most two
        self._uncollected: dict[Ticket, _Step] = {}
        self._make_plans()

    @property
    def memory(self) -> DeviceMemory:
        return self._memory.used

    @property
    def lora_room(self) -> LoraRoom:
        return self._loras.room

    def write_lora(self, place: int, lora: LoraPairs) -> None:
        check_lora(place, lora, self.lora_room)
        self._loras.write(place, lora)

    @property
    def weight_bytes(self) -> int:
        """The total size in bytes of all matrices that a step with logits reads."""
        parts = {id(part): part.weight_bytes for matmul in self.matmuls.bound for part, _ in matmul.parts}
        return sum(parts.values())

    def plan(
        self,
        num_tokens: int,
        num_runs: int,
        num_rows: int,
        *,
        has_masks: bool = False,
        has_draws: bool = False,
        has_following: bool = False,
    ) -> Plan:
        """Return the kernel dispatches of a step with the given numbers of tokens, token runs and logit rows."""
        size = StepSize(num_tokens, num_runs, num_rows, has_masks, has_draws=has_draws, has_following=has_following)
        return self._plan(size, side=0)

    def submit(self, batch: Batch, carried: Sequence[F32] = ()) -> Ticket:
        check_batch(batch, self.shape, self.num_slots, self.max_tokens, self.max_rows)
        check_draws(
            batch, self.shape.vocab_size, self.max_draws, self.num_penalty_slots, max_logprobs=self.max_draw_logprobs
        )
        check_loras(batch, self.lora_room)
        if self._closed:
            raise StepError("the runner is closed")
        self._open.check(batch)
        self._finish_open(run.slot for run in batch if not run.follows)
        while len(self._unfinished) >= _MAX_IN_FLIGHT:
            self._finish(self._unfinished.popleft())
        ticket = Ticket(self._num_submitted)
        try:
            step = self._submit(ticket, list(batch), carried)
        except DeviceError as error:
            raise StepError(f"the device failed in a step: {error}") from error
        self._memory.leave_uploads()
        self._num_submitted += 1
        self._open.add(ticket, step.batch)
        self._unfinished.append(step)
        self._uncollected[ticket] = step
        return ticket

    def collect(self, ticket: Ticket) -> Readout:
        """Wait for the oldest step in flight, and return its read-out; see `Runner`. Does not wait without rows."""
        step = take_oldest(self._uncollected, ticket)
        if step.download is not None:
            while step in self._unfinished:
                self._finish(self._unfinished.popleft())
        if step.error is not None:
            raise StepError(f"the device failed in a step: {step.error}") from step.error
        return decode_readout(step.answer, step.batch, self._limits, partial(self._read_row, step), step.drawn)

    def carry(self, num_tokens: int) -> list[F32]:
        memory, row_bytes = self._memory, 4 * self.shape.width
        try:
            found = [memory.read(rows.buffer, 4 * rows.start, num_tokens * row_bytes) for rows in self._forward.carried]
        except DeviceError as error:
            raise StepError(f"the device failed in a step: {error}") from error
        return [np.frombuffer(rows, np.float32).reshape(num_tokens, -1) for rows in found]

    def trace(self, batch: Batch, layers: Collection[int], carried: Sequence[F32] = ()) -> Trace:
        check_batch(batch, self.shape, self.num_slots, self.max_tokens, self.max_rows)
        if self._closed:
            raise StepError("the runner is closed")
        while self._unfinished:
            self._finish(self._unfinished.popleft())
        try:
            traced = self._trace(batch, layers, carried)
        except DeviceError as error:
            raise StepError(f"the device failed in a step: {error}") from error
        for run in batch:
            self._open.forget(run.slot)
            self._states.advance(run.slot)
        return traced

    def _trace(self, batch: Batch, layers: Collection[int], carried: Sequence[F32]) -> Trace:
        memory, forward, shape = self._memory, self._forward, self.shape
        self._states.submit()
        memory.upload(forward.buffers.batch, 0, encode_batch(batch, self._limits, self._states.sides))
        self._upload_carried(carried)
        num_tokens, num_rows = sum(len(run.tokens) for run in batch), sum(run.rows for run in batch)
        hidden: dict[int, F32] = {}
        size = StepSize(num_tokens, len(batch), num_rows, has_loras=self._upload_loras(batch))
        for layer, plan in forward.traced_plans(size, layers):
            self._recorder.submit(plan)
            if layer is not None:
                x = memory.read(forward.buffers.x, 0, 4 * num_tokens * shape.width)
                hidden[layer] = np.frombuffer(x, np.float32).reshape(num_tokens, shape.width)
        logits = memory.read(forward.outputs[0].logits, 0, 4 * num_rows * shape.row_size) if num_rows else b""
        return Trace(np.frombuffer(logits, np.float32).reshape(num_rows, shape.row_size), hidden)

    def warm_up(self, token_counts: Collection[int], progress: Progress) -> None:
        """Compile kernels by steps in slot 0, which is reset then: of `token_counts`, with a mask, and with a draw.

        Raises DeviceError if the device fails.
        """
        self._make_plans(Plan.once_each)
        try:
            self._run_kernels(token_counts, progress)
        except StepError as error:
            raise DeviceError(f"the kernels can't be compiled: {error}") from error
        finally:
            self._make_plans()
        progress("compiled", len(token_counts), len(token_counts))
        self.write_state(0, None)

    def _run_kernels(self, token_counts: Collection[int], progress: Progress) -> None:
        for done, count in enumerate(token_counts):
            progress("compiling kernels", done, len(token_counts))
            rows = min(count, self.max_rows) if self._forward.has_head else 0
            for lora in (None, 0) if self.lora_room.places else (None,):
                run_step(self, [TokenRun(0, [0] * count, rows=rows, lora=lora)])
        if self.shape.has_head and self._forward.has_head:
            all_allowed = np.full((1, mask_words(self.shape.vocab_size)), 2**32 - 1, np.uint32)
            run_step(self, [TokenRun(0, [0], rows=1, masks=lambda: all_allowed)])
            run_step(self, [TokenRun(0, [0], rows=1, draw=TokenDraw(0, 0, 1, 1.0, 1.0))])

    def _make_plans(self, change: Callable[[Plan], Plan] = lambda plan: plan) -> None:
        """Use plans after `change`, which are kept, from now on."""

        def keep(make: Callable[..., Plan]) -> Callable[..., Plan]:
            return lru_cache(_PLANS)(lambda *size, **side: change(make(*size, **side)))

        forward = self._forward
        self._plan, self._logits_plan, self._readout_plan = map(
            keep, (forward.plan, forward.logits_plan, forward.readout_plan)
        )

    def write_state(self, slot: int, state: State | None) -> None:
        check_slot(slot, self.num_slots)
        if state is not None:
            check_state(state, self.shape)
        self._open.forget(slot)
        self._states.write(slot, state)

    def start_read(self, slot: int) -> PendingState:
        check_slot(slot, self.num_slots)
        self._finish_open((slot,))
        return self._states.start_read(slot)

    def read_state(self, slot: int) -> dict[str, F32]:
        return self.start_read(slot).result()

    def copy_state(self, source: int, target: int) -> None:
        check_slot(source, self.num_slots, "source slot")
        check_slot(target, self.num_slots, "target slot")
        if source != target:
            self._finish_open((source,))
            self._open.forget(target)
            self._states.copy(source, target)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._states.close()
            self._memory.close()

    def _upload_carried(self, carried: Sequence[F32]) -> None:
        for place, rows in zip(self._forward.carried, carried, strict=False):
            self._memory.upload(place.buffer, 4 * place.start, rows)

    def _upload_loras(self, batch: Batch) -> bool:
        """Upload which LoRA each token has; return False, and upload nothing, if none has one."""
        if has_loras := any(run.lora is not None for run in batch):
            self._loras.upload_scales(batch)
        return has_loras

    def _submit(self, ticket: Ticket, batch: Batch, carried: Sequence[F32]) -> _Step:
        """Upload the inputs of `batch`, submit its dispatches, and start the download of its read-outs and draws.

        Masks are made while the device computes the logits. If several tokens are drawn after each run, this submits
        one plan for each of them, so that the device begins while the later ones are encoded.
        """
        side, memory, limits, vocab_size = ticket.number % 2, self._memory, self._limits, self.shape.vocab_size
        num_rows, num_draws = sum(run.rows for run in batch), count_draws(batch)
        self._states.submit()
        memory.upload(self._forward.buffers.batch, 0, encode_batch(batch, limits, self._states.sides))
        self._upload_carried(carried)
        if num_draws:
            self._draws.upload(batch)
        num_tokens = sum(len(run.tokens) for run in batch)
        has_loras = self._upload_loras(batch)
        size = StepSize(num_tokens, len(batch), num_rows, has_draws=num_draws > 0, has_loras=has_loras)
        first = replace(size, has_following=any(run.follows for run in batch))
        if num_rows == 0:
            return _Step(ticket, batch, self._recorder.submit(self._plan(size, side=0)), None)
        if any(run.masks is not None for run in batch):
            self._recorder.submit(self._logits_plan(first, side=side))
            masks = encode_masks(batch, vocab_size)  # None if no run has one
            if masks is not None:
                memory.upload(self._forward.buffers.masks, 0, masks)
            plan = self._readout_plan(replace(size, has_masks=masks is not None), side=side)
        else:
            plan = self._plan(first, side=side)
        for _ in range(num_draws - 1):
            self._recorder.submit(plan)
            plan = self._plan(size, side=side)
        answer, readout_bytes = self._answers[side], 4 * num_rows * limits.readout_words
        copies = [BufferCopy(self._forward.outputs[side].readout, 0, answer, 0, readout_bytes)]
        if num_draws:
            copies += self._draws.copies(batch, answer, readout_bytes)
        submission = self._recorder.submit(plan, copies)
        download = self._recorder.download(answer, sum(copy.num_bytes for copy in copies), submission)
        return _Step(ticket, batch, submission, download)

    def _finish(self, step: _Step) -> None:
        """Wait until the device has executed `step`, and store the results or the error in `step`."""
        try:
            if step.download is None:
                self._recorder.wait(step.submission)
            else:
                answer = step.download.take()
                readout_bytes = 4 * sum(run.rows for run in step.batch) * self._limits.readout_words
                step.answer = answer[:readout_bytes]
                if len(answer) > readout_bytes:
                    step.drawn = decode_draws(answer[readout_bytes:], step.batch, self._limits)
        except DeviceError as error:
            step.error = error
        self._open.close(step.ticket, step.batch, step.drawn)

    def _finish_open(self, slots: Iterable[int]) -> None:
        """Wait for all steps in flight if one of `slots` has an open token run; see `OpenRuns`."""
        if self._open.any_in(slots):
            while self._unfinished:
                self._finish(self._unfinished.popleft())

    def _read_row(self, step: _Step, row: int) -> F32:
        if row in step.rows:
            return step.rows[row]
        if step.ticket.number < self._num_submitted - 2:
            raise StepError(
                f"row {row} of step {step.ticket.number} is overwritten; {self._num_submitted} were submitted"
            )
        row_bytes = 4 * self.shape.row_size
        rows = [row, *step.likely_after(row)][: max(_ROWS_BYTES // row_bytes, 1)]
        first, *others = (row_bytes * one for one in rows)
        data = self._memory.read(self._forward.outputs[step.side].logits, first, row_bytes, *others)
        step.rows.update(zip(rows, np.frombuffer(data, np.float32).reshape(len(rows), -1), strict=True))
        return step.rows[row]
