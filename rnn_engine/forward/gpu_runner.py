"""Runs a model on a GPU, a batch of token runs a step. The embedding stays with the host, the rest is on the device.

Knows how a batch is written for the device and how its answer is read; what is dispatched is the forward pass's.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from functools import lru_cache

import numpy as np

from rnn_engine.errors import DeviceError, StepError
from rnn_engine.forward.batch import check_batch, check_slot, sound_runs
from rnn_engine.forward.embedding import Embedding
from rnn_engine.forward.forward_pass import ForwardPass, Progress
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.packing import WeightFormat
from rnn_engine.forward.state import check_state
from rnn_engine.forward.step import StepLimits
from rnn_engine.forward.tuning import Tuning
from rnn_engine.forward.v7 import load_layers_v7
from rnn_engine.gpu import BufferCopy, Device, Dispatch, Kernels, Plan, Recorder
from rnn_engine.types import F32, I32, Batch, Model, ModelShape, Readout, State, Ticket, TokenRun, run_step

_PLANS = 256  # kept; one for each count of tokens, runs and rows that occurs
_COPY_THREADS = 64


class GpuRunner:
    """A `Runner` on a GPU. It owns the device, and closes it."""

    def __init__(
        self,
        model: Model,
        device: Device,
        kernels: Kernels,
        tuning: Tuning,
        *,
        weights: WeightFormat,
        limits: StepLimits,
        progress: Progress,
    ) -> None:
        """Upload `model`, which may be closed afterwards.

        Raises DeviceMemoryError where the device has no room, DeviceError where it can't run the model; the device
        is closed then.
        """
        self._device = device
        self._limits = limits
        self._shape = model.shape
        self._closed = False
        self._recorder = Recorder(device)
        try:
            matmuls = MatMulKernels(kernels, tuning, weights, limits.constants())
            self._embedding = Embedding(model)
            self._forward = ForwardPass(model, device, matmuls, limits, load_layers_v7, progress)
            self._copies = self._prepare_copies(kernels)
            self._answer = device.create_buffer("answer", 4 * limits.max_rows * limits.readout_words, mappable=True)
            self._state_bytes = 4 * self._forward.state_layout.stride  # of a slot in one layer
            self._read_back = device.create_buffer(
                "state to read back", self._shape.num_layers * self._state_bytes, mappable=True
            )
        except BaseException:
            device.close()
            raise
        self._shift_sides = [0] * limits.num_slots
        self._numbers = itertools.count()
        self._in_flight: dict[Ticket, Readout] = {}
        self._plan = lru_cache(_PLANS)(self._forward.plan)

    @property
    def shape(self) -> ModelShape:
        return self._shape

    @property
    def num_slots(self) -> int:
        return self._limits.num_slots

    @property
    def max_tokens(self) -> int:
        return self._limits.max_tokens

    @property
    def max_rows(self) -> int:
        return self._limits.max_rows

    @property
    def device(self) -> Device:
        return self._device

    @property
    def weight_bytes(self) -> int:
        """Bytes of matrices that a step with logits reads."""
        return self._forward.weight_bytes

    def plan(self, num_tokens: int, num_runs: int, num_rows: int) -> Plan:
        """What a step of so many tokens, runs and rows dispatches."""
        return self._plan(num_tokens, num_runs, num_rows)

    def submit(self, batch: Batch) -> Ticket:
        check_batch(batch, self._shape, self.num_slots, self.max_tokens, self.max_rows)
        if self._closed:
            raise StepError("the runner is closed")
        tokens = np.concatenate([np.asarray(run.tokens, np.intp) for run in batch])
        num_rows = sum(run.rows for run in batch)
        try:
            self._write_batch(batch, len(tokens), num_rows)
            self._device.upload(self._forward.buffers.x, 0, self._embedding.look_up(tokens))
            answer = self._run(self._plan(len(tokens), len(batch), num_rows), num_rows)
        except DeviceError as error:
            raise StepError(f"the device failed in a step: {error}") from error
        for run in batch:
            self._shift_sides[run.slot] ^= 1
        ticket = Ticket(next(self._numbers))
        self._in_flight[ticket] = self._parse(answer, batch)
        return ticket

    def collect(self, ticket: Ticket) -> Readout:
        return self._in_flight.pop(ticket)

    def warm_up(self, token_counts: Collection[int], progress: Progress) -> None:
        """Run a step of each of these token counts, with as many rows as may be, and leave no trace in slot 0."""
        for done, count in enumerate(token_counts):
            progress("compiling kernels", done, len(token_counts))
            run_step(self, [TokenRun(0, [0] * count, rows=min(count, self.max_rows))])
        progress("compiled", len(token_counts), len(token_counts))
        self.write_state(0, None)

    def write_state(self, slot: int, state: State | None) -> None:
        check_slot(slot, self.num_slots)
        if state is not None:
            check_state(state, self._shape)
        packed = self._forward.state_layout.pack(self._shape.initial_state() if state is None else state)  # [L, stride]
        for buffer, layer in zip(self._forward.states, packed, strict=True):
            self._device.upload(buffer, slot * self._state_bytes, layer)
        self._shift_sides[slot] = 0

    def read_state(self, slot: int) -> dict[str, F32]:
        check_slot(slot, self.num_slots)
        num_bytes = self._state_bytes
        copies = [
            BufferCopy(buffer, slot * num_bytes, self._read_back, layer * num_bytes, num_bytes)
            for layer, buffer in enumerate(self._forward.states)
        ]
        self._recorder.submit(copies=copies)
        answer = self._recorder.read(self._read_back, len(copies) * num_bytes)
        packed = np.frombuffer(answer, np.float32).reshape(len(copies), -1)  # [L, stride]
        return self._forward.state_layout.unpack(packed, self._shift_sides[slot])

    def copy_state(self, source: int, target: int) -> None:
        check_slot(source, self.num_slots, "source slot")
        check_slot(target, self.num_slots, "target slot")
        if source != target:
            self._device.upload(self._pair, 0, np.array([source, target], np.uint32))
            self._recorder.submit(self._copies)
            self._shift_sides[target] = self._shift_sides[source]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._device.close()

    def _prepare_copies(self, kernels: Kernels) -> Plan:
        """The dispatches that fork a state: one a layer."""
        self._pair = self._device.create_buffer("slots to copy", 8)
        stride = self._forward.state_layout.stride
        kernel = kernels.get("copy_state", {"THREADS": _COPY_THREADS, "STATE_STRIDE": stride})
        num_groups = -(-stride // (4 * _COPY_THREADS))
        return Plan(
            tuple(
                Dispatch("fork", kernel, kernels.bind(kernel.source, {"pair": self._pair, "state": state}), num_groups)
                for state in self._forward.states
            )
        )

    def _write_batch(self, batch: Batch, num_tokens: int, num_rows: int) -> None:
        """Fill the buffer that batch.wgsl describes."""
        limits = self._limits
        words = np.zeros(4 + 4 * limits.num_slots + 2 * limits.max_rows + num_tokens, np.uint32)
        words[:3] = num_tokens, len(batch), num_rows
        runs = words[4 : 4 + 4 * limits.num_slots].reshape(-1, 4)
        rows = words[4 + 4 * limits.num_slots :][: 2 * limits.max_rows].reshape(-1, 2)
        token_run = words[len(words) - num_tokens :]
        start = row = 0
        for index, run in enumerate(batch):
            length = len(run.tokens)
            runs[index] = run.slot, start, length, self._shift_sides[run.slot]
            token_run[start : start + length] = index
            rows[row : row + run.rows, 0] = np.arange(start + length - run.rows, start + length)
            if run.targets is not None:
                rows[row : row + run.rows, 1] = run.targets
            start += length
            row += run.rows
        self._device.upload(self._forward.buffers.batch, 0, words)

    def _run(self, plan: Plan, num_rows: int) -> bytes:
        """Submit `plan` and wait for the read-out of its rows."""
        if num_rows == 0:
            self._recorder.submit(plan)
            return b""
        num_bytes = 4 * num_rows * self._limits.readout_words
        self._recorder.submit(plan, [BufferCopy(self._forward.outputs.readout, 0, self._answer, 0, num_bytes)])
        return self._recorder.read(self._answer, num_bytes)

    def _parse(self, answer: bytes, batch: Batch) -> Readout:
        count = self._limits.num_candidates
        words = np.frombuffer(answer, np.float32).reshape(-1, 2 + 2 * count)  # [R, words]
        logsumexp = words[:, 0].copy()
        has_target = np.repeat([run.targets is not None for run in batch], [run.rows for run in batch])
        ids: I32 = words[:, 2 : 2 + count].view(np.int32)
        logits = words[:, 2 + count :]
        order = np.lexsort((ids, -logits), axis=-1)  # greatest first, equal ones by ascending id
        return Readout(
            ids=np.take_along_axis(ids, order, axis=-1),
            logits=np.take_along_axis(logits, order, axis=-1),
            logsumexp=logsumexp,
            target_logits=np.where(has_target, words[:, 1], np.float32(np.nan)),
            sound=sound_runs(batch, np.isfinite(logsumexp)),
            full_row=self._read_row,
        )

    def _read_row(self, row: int) -> F32:
        row_bytes = 4 * self._shape.vocab_size
        data = self._device.read(self._forward.outputs.logits, row * row_bytes, row_bytes)
        return np.frombuffer(data, np.float32)
