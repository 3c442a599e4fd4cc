"""The kernels that reduce rows of logits to candidates and draw from them, by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rnn_engine.forward.draws import SlotBiases, SlotHalts, SlotPenalties, decode_draws, encode_draws
from rnn_engine.forward.step import StepLimits
from rnn_engine.forward.transfer import decode_readout, encode_batch
from rnn_engine.gpu import BufferCopy, Dispatch, Plan, Recorder
from rnn_engine.types import F32, MOST_DRAW_BIASES, Batch, Drawn, Readout, TokenDraw, TokenRun
from tests.support.gpu import open_checked


@dataclass(frozen=True)
class DrawKernels:
    """Kernels for rows of `vocab_size` logits, of which `num_candidates` are kept."""

    vocab_size: int
    num_candidates: int
    kind: str = "software"

    def run(self, logits: F32, draws: Sequence[TokenDraw | None]) -> tuple[Readout, Sequence[Drawn]]:
        """Return the read-out of rows [R, V], and what was drawn from each: at most one token a row."""
        device, tuning = open_checked(self.kind)
        num_rows = len(logits)
        candidates = min(self.num_candidates, self.vocab_size)
        limits = StepLimits(num_rows, num_rows, num_rows, candidates, num_penalty_slots=num_rows)
        batch: Batch = [TokenRun(slot, (0,), rows=1, draw=draw) for slot, draw in enumerate(draws)]
        memory, recorder = device.allocate(), Recorder(device)
        try:
            sizes = {
                "batch": limits.batch_words,
                "logits": logits.size,
                "masks": 1,
                "readout": num_rows * limits.readout_words,
                "halts": num_rows * -(-self.vocab_size // 32),
                "draws": num_rows * limits.draw_words,
                "last_drawn": num_rows,
                "penalties": logits.size,
                "biases": 2 * num_rows * MOST_DRAW_BIASES,
            }
            buffers = {name: memory.create_buffer(name, 4 * size) for name, size in sizes.items()}
            answer = memory.create_buffer("answer", 4 * (sizes["readout"] + sizes["draws"]), mappable=True)
            memory.upload(buffers["logits"], 0, logits)
            memory.upload(buffers["batch"], 0, encode_batch(batch, limits, [0] * num_rows, self.vocab_size))
            SlotHalts(buffers["halts"], self.vocab_size, num_rows, memory).upload(batch)
            SlotBiases(buffers["biases"], num_rows, memory).upload(batch)
            penalties = SlotPenalties(buffers["penalties"], num_rows, memory)
            if any(draws):
                memory.upload(buffers["draws"], 0, encode_draws(batch, limits, penalties))
            common = {
                **limits.constants(),
                "THREADS": tuning.candidate_threads,
                "VOCAB": self.vocab_size,
                "K": limits.num_candidates,
            }
            of_draws = {"MAX_DRAWS": limits.max_draws, "MAX_BIASES": MOST_DRAW_BIASES}
            dispatches = []
            for name, own, bound in (
                ("candidates", {"HAS_MASKS": False}, ("batch", "logits", "masks", "readout")),
                ("draw", of_draws, tuple(name for name in buffers if name != "masks")),
            ):
                kernel = device.kernels.get(name, {**common, **own})
                group = device.kernels.bind(kernel.source, {key: buffers[key] for key in bound})
                dispatches.append(Dispatch(name, kernel, group, num_rows))
            readout_bytes, draw_bytes = 4 * sizes["readout"], 4 * sizes["draws"]
            submission = recorder.submit(
                Plan(tuple(dispatches)),
                [
                    BufferCopy(buffers["readout"], 0, answer, 0, readout_bytes),
                    BufferCopy(buffers["draws"], 0, answer, readout_bytes, draw_bytes),
                ],
            )
            data = recorder.download(answer, readout_bytes + draw_bytes, submission).take()
        finally:
            memory.close()
        drawn = decode_draws(data[readout_bytes:], batch, limits)
        return decode_readout(data[:readout_bytes], batch, limits, lambda row: logits[row], drawn), drawn
