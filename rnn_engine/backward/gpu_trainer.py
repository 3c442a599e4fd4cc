"""A trainer on a GPU: it uploads documents, submits the plans of a `BackwardPass`, and reads the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.backward.backward_pass import BackwardPass
from rnn_engine.backward.context import LoadBackward
from rnn_engine.backward.contract import PackedDocuments, check_documents, check_optimizer, check_training_state
from rnn_engine.backward.trainer import Optimizer, TrainingDocument, TrainingState
from rnn_engine.errors import DeviceError, StepError, check_finite
from rnn_engine.forward.forward_pass import Progress
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.step import HEADER_WORDS, ROW_WORDS, RUN_WORDS, TOKEN_WORDS, StepLimits, StepSize
from rnn_engine.forward.weight_choice import FormatOf
from rnn_engine.gpu import Buffer, Device, Dispatch, Memory, Plan, Recorder
from rnn_engine.types import F32, DeviceMemory, Model, State

_PLANS: Final = 32  # of each kind that are kept; each combination of token, document and row counts has its own


class GpuTrainer:
    """A `Trainer` on a GPU. It starts from the model's empty state, and frees its device memory at `close`."""

    def __init__(
        self,
        model: Model,
        load_backward: LoadBackward,
        device: Device,
        memory: Memory,
        matmuls: MatMulKernels,
        *,
        format_of: FormatOf,
        limits: StepLimits,
        optimizer: Optimizer,
        trains_shifts: bool,
        state_rate: float | None = None,
        progress: Progress,
    ) -> None:
        """Upload `model`, which may be closed afterwards, and allocate the device buffers for steps.

        `matmuls` are kernels of `device` for steps of `limits`, with products in f32. If they have low-rank pairs,
        these are trained in place of the initial state, or beside it if `state_rate` says at how many times their
        rate. A step has at most `limits.num_slots` documents, and computes at most `limits.max_rows` logits at a time.
        `memory` is an empty group of buffers of `device`. The caller closes it if this fails, else the trainer does.
        Raises InvalidRequestError for settings of the optimizer that are out of range, DeviceMemoryError if the device
        has no room, DeviceError if it can't run the model.
        """
        check_optimizer(optimizer)
        self.shape = model.shape
        self.max_tokens = limits.max_tokens
        self.max_documents = limits.num_slots
        self.max_rows = limits.max_rows  # of logits that are computed at a time
        self._limits = limits
        self._optimizer = optimizer
        self._memory = memory
        self._recorder = Recorder(device)
        self._max_operations = matmuls.tuning.max_step_operations
        self._pass = BackwardPass(
            model,
            memory,
            matmuls,
            limits,
            load_backward,
            format_of,
            progress,
            trains_shifts=trains_shifts,
            state_rate=state_rate,
        )
        self._parameters = self._pass.parameters
        self._num_updates = 0
        self._closed = False
        self._forward_plans = self._in_parts(self._pass.forward_plan)
        self._loss_plans = self._in_parts(self._pass.loss_plan)
        self._backward_plans = self._in_parts(self._pass.backward_plan)
        self._update_plans = self._in_parts(self._pass.update_plan)

    @property
    def memory(self) -> DeviceMemory:
        return self._memory.used

    def plan(self, num_tokens: int, num_documents: int, num_rows: int) -> Plan:
        """Return the dispatches of `accumulate` for these numbers of inputs, documents and rows, at most `max_rows`."""
        step = StepSize(num_tokens, num_documents, num_rows)
        plans = self._pass.forward_plan(step, keeps=True), self._pass.loss_plan(step, has_gradient=True)
        return Plan(tuple(chain(*(plan.dispatches for plan in (*plans, self._pass.backward_plan(step))))))

    def loss(self, documents: Sequence[TrainingDocument]) -> float:
        packed = self._start(documents)
        with _step_errors():
            step = self._run_forward(packed, keeps=False)
            return self._run_rows(packed, step, has_gradient=False)

    def accumulate(self, documents: Sequence[TrainingDocument], scale: float) -> float:
        packed = self._start(documents)
        with _step_errors():
            step = self._run_forward(packed, keeps=True)
            loss = self._run_rows(packed, step, has_gradient=True)
            self._memory.upload(self._pass.buffers.settings, 0, np.array([scale], np.float32))
            self._submit(self._backward_plans(step))
        return loss

    def gradient(self) -> State:
        return self._read([each.gradient for each in self._parameters.buffers], self._parameters.trained)

    def update(self, rate: float) -> float:
        check_finite("rate", rate)
        self._check_open()
        optimizer, count = self._optimizer, self._num_updates + 1
        biases = (1 - optimizer.beta1**count, 1 - optimizer.beta2**count)
        factors = (1 - optimizer.beta1, 1 - optimizer.beta2, optimizer.epsilon, optimizer.max_norm)
        buffers = self._pass.buffers
        with np.errstate(over="ignore"), _step_errors():
            self._memory.upload(buffers.settings, 0, np.array([0, rate, *biases, *factors], np.float32))
            self._memory.upload(buffers.squared_norm, 0, np.zeros(1, np.float32))
            self._submit(self._update_plans())
            squared = np.frombuffer(self._memory.read(buffers.squared_norm, 0, 4), np.float32)
        norm = float(np.sqrt(squared[0]))
        if np.isfinite(norm):
            self._num_updates = count
        return norm

    def read(self) -> TrainingState:
        buffers, trained = self._parameters.buffers, self._parameters.trained
        return TrainingState(
            self._read([each.values for each in buffers], tuple(self._parameters.shapes)),
            self._read([each.first for each in buffers], trained),
            self._read([each.second for each in buffers], trained),
            self._num_updates,
        )

    def write(self, state: TrainingState) -> None:
        check_training_state(state, self._parameters.shapes, self._parameters.trained)
        self._check_open()
        buffers = self._parameters.buffers
        with _step_errors():
            self._write([each.values for each in buffers], state.state)
            self._write([each.first for each in buffers], state.first)
            self._write([each.second for each in buffers], state.second)
            self._write([each.gradient for each in buffers], {})
        self._num_updates = state.num_updates

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._memory.close()

    def _start(self, documents: Sequence[TrainingDocument]) -> PackedDocuments:
        check_documents(documents, self.max_documents, self.max_tokens)
        self._check_open()
        return PackedDocuments.of(documents)

    def _check_open(self) -> None:
        if self._closed:
            raise StepError("the trainer is closed")

    def _run_forward(self, packed: PackedDocuments, *, keeps: bool) -> StepSize:
        """Upload the documents and submit the layers' forward pass; return the size of the step, without rows."""
        self._memory.upload(self._pass.inputs.batch, 0, encode_documents(packed, self._limits))
        step = StepSize(len(packed.inputs), len(packed.lengths), 0)
        self._submit(self._forward_plans(step, keeps=keeps))
        return step

    def _run_rows(self, packed: PackedDocuments, step: StepSize, *, has_gradient: bool) -> float:
        """Compute the losses of all tokens that count, a piece of them at a time; wait, and return their sum."""
        counting, most = np.flatnonzero(packed.weights), self.max_rows
        batch, rows_start = self._pass.inputs.batch, 4 * self._limits.batch_places[0]
        for first in range(0, len(counting), most):
            tokens = counting[first : first + most]
            rows = np.zeros((len(tokens), ROW_WORDS), np.uint32)
            rows[:, 0], rows[:, 1] = tokens, packed.targets[tokens]
            self._memory.upload(batch, 0, np.array([len(packed.inputs), len(packed.lengths), len(tokens)], np.uint32))
            self._memory.upload(batch, rows_start, rows)
            self._memory.upload(self._pass.buffers.row_weights, 0, packed.weights[tokens])
            size = StepSize(step.num_tokens, step.num_runs, len(tokens))
            self._submit(self._loss_plans(size, has_gradient=has_gradient))
        losses = np.frombuffer(self._memory.read(self._pass.buffers.losses, 0, 4 * step.num_tokens), np.float32)
        return float(losses[counting].astype(np.float64).sum())

    def _in_parts(self, make_plan: Callable[..., Plan]) -> Callable[..., tuple[Plan, ...]]:
        """Return a cached function that returns a plan in parts, each short enough for what a driver allows."""
        return lru_cache(_PLANS)(lambda *size, **what: tuple(parts_of(make_plan(*size, **what), self._max_operations)))

    def _submit(self, plans: Sequence[Plan]) -> None:
        for plan in plans:
            self._recorder.submit(plan)

    def _read(self, buffers: Sequence[Buffer], names: Sequence[str]) -> dict[str, F32]:
        """Return the arrays `names` of what the buffers of all parameters hold."""
        self._check_open()
        with _step_errors():
            contents = [np.frombuffer(self._memory.read(each, 0, each.size), np.float32) for each in buffers]
        arrays = self._parameters.unpack(contents)
        return {name: arrays[name] for name in names}

    def _write(self, buffers: Sequence[Buffer], arrays: State) -> None:
        """Write `arrays` to the buffers of all parameters, and zeros for the other ones."""
        for buffer, content in zip(buffers, self._parameters.pack(arrays), strict=True):
            self._memory.upload(buffer, 0, content)


def encode_documents(packed: PackedDocuments, limits: StepLimits) -> NDArray[np.uint32]:
    """Encode documents as the words of `struct Batch` of batch.wgsl, without rows, each in the slot of its number."""
    lengths = np.array(packed.lengths)
    count, num_tokens = len(lengths), len(packed.inputs)
    _, tokens_start, _ = limits.batch_places
    words = np.zeros(tokens_start + TOKEN_WORDS * num_tokens, np.uint32)
    words[:2] = num_tokens, count
    runs = words[HEADER_WORDS : HEADER_WORDS + RUN_WORDS * count].reshape(-1, RUN_WORDS)
    runs[:, 0], runs[:, 1], runs[:, 2] = np.arange(count), lengths.cumsum() - lengths, lengths
    tokens = words[tokens_start:].reshape(-1, TOKEN_WORDS)
    tokens[:, 0], tokens[:, 1] = np.arange(count).repeat(lengths), packed.inputs
    return words


def parts_of(plan: Plan, max_operations: float) -> Iterator[Plan]:
    """Yield the dispatches of `plan` in parts of at most `max_operations`, or of one dispatch that has more."""
    part: list[Dispatch] = []
    operations = 0
    for dispatch in plan.dispatches:
        if part and operations + dispatch.operations > max_operations:
            yield Plan(tuple(part))
            part, operations = [], 0
        part.append(dispatch)
        operations += dispatch.operations
    if part:
        yield Plan(tuple(part))


@contextmanager
def _step_errors() -> Iterator[None]:
    try:
        yield
    except DeviceError as error:
        raise StepError(f"the device failed in a step of training: {error}") from error
