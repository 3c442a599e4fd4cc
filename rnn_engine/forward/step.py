"""How large a step is, how large it may be, and the buffers that the steps of every version have."""

from __future__ import annotations

from dataclasses import dataclass

from rnn_engine.draws import MOST_DRAW_BIASES, MOST_DRAW_LOGPROBS, MOST_DRAWS
from rnn_engine.gpu import Buffer, Memory
from rnn_engine.types import ModelShape, mask_words
from shaders import Constant


def slot_penalty_bytes(vocab_size: int) -> int:
    """Return what a slot's rows of penalties.wgsl take."""
    return 2 * 4 * vocab_size


@dataclass(frozen=True, slots=True)
class StepSize:
    """What a step takes; the dispatches of its plan depend on nothing else."""

    num_tokens: int
    num_runs: int
    num_rows: int
    has_masks: bool = False  # some row has a mask of its own
    has_given: bool = False  # some run brings embeddings
    has_draws: bool = False  # the device draws from some row
    has_following: bool = False  # some run goes on from what its slot has drawn last


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The most that one step takes, and how many slots there are."""

    num_slots: int
    max_tokens: int
    max_rows: int
    num_candidates: int
    max_draws: int = MOST_DRAWS  # tokens that a step draws after a run
    num_penalty_slots: int = 0  # the first ones, in which draws may have penalties

    @property
    def batch_words(self) -> int:
        """Words of 4 bytes of struct Batch of batch.wgsl."""
        return 4 + 4 * self.num_slots + 3 * self.max_rows + 2 * self.max_tokens

    @property
    def readout_words(self) -> int:
        """Words of 4 bytes that a row has in the read-out of readout.wgsl."""
        return 5 + 2 * self.num_candidates

    @property
    def draw_words(self) -> int:
        """Words of 4 bytes of struct Draw of draw.wgsl, of which each row has one."""
        return 23 + self.max_draws

    @property
    def max_logprobs(self) -> int:
        """Tokens whose log-probabilities a draw may tell with each token."""
        return min(MOST_DRAW_LOGPROBS, self.num_candidates)

    @property
    def told_words(self) -> int:
        """Words of 4 bytes of what the draws of a step may tell with their tokens."""
        return self.num_slots * self.max_draws * (2 + 2 * self.max_logprobs)

    def constants(self) -> dict[str, Constant]:
        """The constants of batch.wgsl; a step has at most one run a slot."""
        return {"MAX_RUNS": self.num_slots, "MAX_ROWS": self.max_rows, "MAX_TOKENS": self.max_tokens}


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """Where a step is described, and the activations of every version."""

    batch: Buffer  # struct Batch of batch.wgsl
    masks: Buffer  # [R, ceil(V / 32)] u32, a bit a token
    draws: Buffer  # struct Draws of draw.wgsl
    halts: Buffer  # [slots, ceil(V / 32)] u32, a bit a token after which none is drawn
    last_drawn: Buffer  # [slots] u32, a token or HALTED of last_drawn.wgsl
    biases: Buffer  # [slots, MOST_DRAW_BIASES] struct Bias of draw.wgsl
    penalties: Buffer  # [slots that may have some, 2, V] u32, the rows of penalties.wgsl
    x: Buffer  # [T, D] f32, the residual stream
    normed: Buffer  # [R, D] f32, the rows after the last norm

    @classmethod
    def create(cls, shape: ModelShape, limits: StepLimits, memory: Memory) -> StepBuffers:
        return cls(
            batch=memory.create_buffer("batch", 4 * limits.batch_words),
            masks=memory.create_buffer("masks", 4 * limits.max_rows * mask_words(shape.vocab_size)),
            draws=memory.create_buffer("draws", 4 * (limits.max_rows * limits.draw_words + limits.told_words)),
            halts=memory.create_buffer("halts", 4 * limits.num_slots * mask_words(shape.vocab_size)),
            last_drawn=memory.create_buffer("tokens drawn last", 4 * limits.num_slots),
            biases=memory.create_buffer("biases", 8 * limits.num_slots * MOST_DRAW_BIASES),
            penalties=memory.create_buffer(
                "penalties", limits.num_penalty_slots * slot_penalty_bytes(shape.vocab_size)
            ),
            x=memory.create_buffer("x", 4 * limits.max_tokens * shape.width),
            normed=memory.create_buffer("normed rows", 4 * limits.max_rows * shape.width),
        )


@dataclass(frozen=True, slots=True)
class HeadOutputs:
    """What a step leaves for the host."""

    logits: Buffer  # [R, V] f32
    readout: Buffer  # [R] struct Readout of readout.wgsl

    @classmethod
    def create_pair(cls, shape: ModelShape, limits: StepLimits, memory: Memory) -> tuple[HeadOutputs, HeadOutputs]:
        """One for each of two steps in flight. They share the read-out, which a step copies away at its end."""
        readout = memory.create_buffer("readout", 4 * limits.max_rows * limits.readout_words)
        logits = [memory.create_buffer("logits", 4 * limits.max_rows * shape.vocab_size) for _ in range(2)]
        return cls(logits[0], readout), cls(logits[1], readout)
