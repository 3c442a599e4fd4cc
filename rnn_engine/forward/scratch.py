"""How large a step may be, and the buffers between its kernels, which are as large as that."""

from __future__ import annotations

from dataclasses import dataclass

from rnn_engine.forward.packing import padded
from rnn_engine.gpu import Device
from rnn_engine.types import ModelShape
from shaders import Constant


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The most that one step takes, and how many slots there are."""

    num_slots: int
    max_tokens: int
    max_rows: int
    num_candidates: int

    def constants(self) -> dict[str, Constant]:
        """The constants of batch.wgsl; a step has at most one run a slot."""
        return {"MAX_RUNS": self.num_slots, "MAX_ROWS": self.max_rows, "MAX_TOKENS": self.max_tokens}


class Scratch:
    """The buffers between the kernels of a step. `x` is the residual stream; hidden are the adapters' inner vectors."""

    def __init__(self, shape: ModelShape, limits: StepLimits, device: Device) -> None:
        tokens, width = limits.max_tokens, shape.width
        self.hidden_strides = {name: padded(getattr(shape.ranks, name)) for name in "wagv"}
        self.hidden_starts: dict[str, int] = {}
        place = 3 * tokens * width  # behind r, k and v
        for name, stride in self.hidden_strides.items():
            self.hidden_starts[name] = place
            place += tokens * stride
        batch_words = 4 + 4 * limits.num_slots + 2 * limits.max_rows + tokens
        self.batch = device.create_buffer("batch", 4 * batch_words)
        self.x = device.create_buffer("x", 4 * tokens * width)
        self.mixes = device.create_buffer("mixes", 4 * 6 * tokens * width)
        self.projected = device.create_buffer("projected", 4 * place)
        self.gates = device.create_buffer("gates", 4 * 4 * tokens * width)
        self.v_first = device.create_buffer("v_first", 4 * tokens * width)
        self.mixed = device.create_buffer("mixed", 4 * tokens * width)
        self.ffn_hidden = device.create_buffer("ffn hidden", 4 * tokens * padded(shape.ffn_width))
        self.normed = device.create_buffer("normed rows", 4 * limits.max_rows * width)
        self.logits = device.create_buffer("logits", 4 * limits.max_rows * shape.vocab_size)
        self.readout_words = 2 + 2 * limits.num_candidates  # of a row
        self.readout = device.create_buffer("readout", 4 * limits.max_rows * self.readout_words)
