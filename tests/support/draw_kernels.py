"""The kernels that reduce rows of logits to candidates and draw from them, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from rnn_engine.forward.forward_pass import CandidateKernel, candidate_kernels
from rnn_engine.forward.step import (
    DeviceDraws,
    HeadOutputs,
    StepBuffers,
    StepLimits,
    decode_draws,
    decode_readout,
    encode_batch,
)
from rnn_engine.forward.weight_formats import round_up
from rnn_engine.gpu import Buffer, BufferCopy, Dispatch, Plan, Recorder
from rnn_engine.types import F32, MOST_DRAW_BIASES, Batch, Drawn, Readout, TokenDraw, TokenRun
from rnn_engine_shaders import Constant
from tests.support.gpu import ROW_ROOM, open_checked
from tests.support.models import tiny_shape


@dataclass(frozen=True)
class DrawKernels:
    """Kernels that reduce rows of `vocab_size` logits to `num_candidates` candidates and draw from these."""

    vocab_size: int
    num_candidates: int
    kind: str = "software"

    def run(self, logits: F32, draws: Sequence[TokenDraw | None]) -> tuple[Readout, Sequence[Drawn]]:
        """Return the read-out of rows [R, V], and the tokens drawn from them: at most one for each row."""
        device, tuning = open_checked(self.kind)
        num_rows = len(logits)
        candidates = min(self.num_candidates, self.vocab_size)
        limits = StepLimits(num_rows, num_rows, round_up(num_rows, ROW_ROOM), candidates, num_penalty_slots=num_rows)
        batch: Batch = [TokenRun(slot, (0,), rows=1, draw=draw) for slot, draw in enumerate(draws)]
        memory, recorder = device.allocate(), Recorder(device)
        try:
            shape = tiny_shape(vocab=self.vocab_size)
            buffers = StepBuffers.create(shape, limits, memory)
            outputs, _ = HeadOutputs.create_pair(shape, limits, memory)
            bound = {**_fields(buffers), **_fields(outputs)}
            memory.upload(outputs.logits, 0, logits)
            memory.upload(buffers.batch, 0, encode_batch(batch, limits, [0] * num_rows))
            device_draws = DeviceDraws(buffers, self.vocab_size, limits, memory)
            readout_bytes = 4 * num_rows * limits.readout_words
            answer = memory.create_buffer("answer", readout_bytes + buffers.draws.size, mappable=True)
            copies = [BufferCopy(outputs.readout, 0, answer, 0, readout_bytes)]
            device_draws.upload(batch)
            copies += device_draws.copies(batch, answer, readout_bytes)
            found = candidate_kernels(tuning, self.vocab_size, candidates, masks=False)
            bound["parts"] = memory.create_buffer("parts", num_rows * found[0].found_bytes)
            of_draws: dict[str, Constant] = {
                "THREADS": tuning.norm_threads,
                "VOCAB": self.vocab_size,
                "K": candidates,
                "MAX_DRAWS": limits.max_draws,
                "MAX_BIASES": MOST_DRAW_BIASES,
            }
            dispatches = []
            for name, own in [
                *(("candidates", kernel) for kernel in found),
                ("draw", CandidateKernel(1, of_draws, ())),
            ]:
                kernel = device.kernels.get(name, {**limits.constants(), **own.constants}, own.includes)
                group = device.kernels.bind(kernel.source, {key: bound[key] for key in kernel.source.bindings})
                dispatches.append(Dispatch(name, kernel, group, num_rows, own.num_parts))
            submission = recorder.submit(Plan(tuple(dispatches)), copies)
            data = recorder.download(answer, sum(copy.num_bytes for copy in copies), submission).take()
        finally:
            memory.close()
        drawn = decode_draws(data[readout_bytes:], batch, limits)
        return decode_readout(data[:readout_bytes], batch, limits, lambda row: logits[row], drawn), drawn


def _fields(buffers: StepBuffers | HeadOutputs) -> dict[str, Buffer]:
    return {field.name: getattr(buffers, field.name) for field in fields(buffers)}
