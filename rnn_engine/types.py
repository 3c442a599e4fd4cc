"""The types that all layers share: a model's sizes and state, a batch of tokens to run in one step, and its results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, field
from enum import Enum
from math import isclose, prod
from typing import Any, Final, Literal, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.quantised.rows import Matrix

MOST_DRAWS: Final = 16
"""The most tokens that a device itself draws (samples) for one sequence in one step."""

DRAW_TEMPERATURES: Final = (0.01, 100.0)
"""The least and the greatest temperature with which a device itself draws tokens."""

DRAW_PENALTIES: Final = (1e-6, 100.0)
"""The least and the greatest presence or frequency penalty that a device subtracts from logits; 0 is allowed, too."""

DRAW_DECAYS: Final = (0.1, 1.0)
"""The least and the greatest factor by which a device lets penalties decay with each token."""

DRAW_REPEATS: Final = (1.0, 100.0)
"""The least and the greatest repetition penalty that a device applies (`DrawPenalties.repeat`); 1 changes nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawPenalties:
    """Penalties that a device applies to a text's tokens, as `rnn_engine.sampling.adjustments.Adjustments` does.

    A device keeps the penalties in a sequence's slot, and counts each token that it draws. It begins anew, with
    `earlier`, if a draw comes with another object than the slot's last draw.
    """

    presence: float  # 0 or within `DRAW_PENALTIES`, like the next
    frequency: float
    decay: float  # within `DRAW_DECAYS`
    earlier: NDArray[np.float32] | None = None  # [V] the penalties at the beginning, none negative; None: none yet
    repeat: float = 1.0  # within `DRAW_REPEATS`; divides a recent token's logit, or multiplies it
    window: int | None = None  # how many of the latest tokens are recent; None: all
    seen: NDArray[np.uint32] | None = None  # [V] the place of each token's last occurrence, from 1 on; 0, or None: none


MOST_DRAW_BIASES: Final = 64
"""The most tokens to whose logits a device adds a bias when it draws a token."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawBiases:
    """Biases that a device adds to the logits of n tokens before it draws one."""

    tokens: NDArray[np.int32]  # [n] all different, at most `MOST_DRAW_BIASES`
    values: NDArray[np.float32]  # [n]


MOST_DRAW_LOGPROBS: Final = 20
"""How many of the likeliest tokens' log-probabilities a device returns, at most, with each token that it draws."""


@dataclass(slots=True)
class TokenDraw:
    """How the device draws the tokens that follow a run, the first from the run's last row.

    It draws as `rnn_engine.sampling.samplers.Nucleus` does. With `min_p`, it draws as a `Chain` of llama-server's
    top-k, top-p, min-p and temperature. It uses the same random numbers, and so always draws the token that the host
    would draw. Every token except the last is run in the same step, and the next one is drawn from its row. Drawing
    ends after `count` tokens, after one of `halts`, or at a row that does not decide: see `Drawn`.
    """

    seed: int
    index: int  # of the first token in its text
    top_k: int  # 0 = all
    top_p: float
    temperature: float  # within `DRAW_TEMPERATURES`
    count: int = 1
    halts: NDArray[np.uint32] | None = None  # [ceil(V / 32)] a bit for each token after which none is drawn
    min_p: float | None = None  # greater than 0
    biases: DrawBiases | None = None
    penalties: DrawPenalties | None = None
    counts_input: bool = False  # whether to count the last token of the run, which the device did not draw
    logprobs: int | None = None  # alternatives to return with each drawn token; 0 = only its own; None = none at all


@dataclass(slots=True)  # not frozen, which triples what making one costs: there is one a token
class TokenLogprobs:
    """Natural-log probabilities of one token and of the likeliest ones, under the model, before penalties and bias."""

    own: float
    top: tuple[tuple[int, float], ...]  # (token, log-probability), likeliest first, equal ones by ascending id


@dataclass(slots=True)  # not frozen, which triples what making one costs: there is one for each run
class Drawn:
    """The tokens that a device itself has drawn after one `TokenRun`, and how the drawing ended.

    If it `is_settled`, all of them except the last one were run. Else all were run, and the host must draw from the
    row.

    If it `goes_on`, a run that follows runs the last token. Otherwise a run that follows does nothing, and its row
    means nothing: its own `Drawn` has no tokens and is settled.
    """

    tokens: Sequence[int]
    is_settled: bool
    goes_on: bool = False
    logprobs: Sequence[TokenLogprobs] = ()  # of each token, if they are asked for

    @property
    def num_run(self) -> int:
        """The number of tokens that the device has run; those of the `TokenRun` itself count as one."""
        return 1 + len(self.tokens) - self.is_settled


NOTHING_DRAWN = Drawn((), is_settled=False)

F32: TypeAlias = NDArray[np.float32]
I32: TypeAlias = NDArray[np.int32]

State: TypeAlias = Mapping[str, F32]
"""The recurrent state of one sequence, on the host: field name -> [L, *StateField.shape] f32, for L layers."""


@dataclass(frozen=True, slots=True, eq=False)
class LoraPairs:
    """A LoRA that is not merged: low-rank pairs beside matrices, with which y = W x + B A x for a sequence's tokens."""

    digest: str  # equal for equal pairs
    pairs: Mapping[str, tuple[F32, F32]]  # the name of W [out, in] -> A [R, in], and B [out, R] times alpha / R

    @property
    def num_bytes(self) -> int:
        return sum(down.nbytes + up.nbytes for down, up in self.pairs.values())


@dataclass(frozen=True, slots=True)
class LoraRoom:
    """How many LoRAs a step can use at the same time, the greatest rank of their pairs, and the matrices beside these.

    Without places, a runner has no room for LoRAs.
    """

    places: int = 0
    rank: int = 16
    matrices: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # name -> [out, in]

    def misfit(self, lora: LoraPairs) -> str | None:
        """Return what keeps a runner with this room from taking `lora`, and what it expects; None if nothing does."""
        if not self.places:
            return "it has a LoRA, and there is no room for one; expected --max-loras 1 or more, or --lora to merge it"
        for name, (down, up) in lora.pairs.items():
            shape, expected = (len(up), down.shape[-1]), self.matrices.get(name)
            if shape != expected:
                wanted = "a matrix of the model's time or channel mix" if expected is None else f"{list(expected)}"
                return f"its LoRA changes {name} {list(shape)}; expected {wanted}"
            if len(down) > self.rank:
                return f"its LoRA has the rank {len(down)}; expected at most {self.rank}, or a greater --max-lora-rank"
        return None


NO_LORAS: Final = LoraRoom()


@dataclass(frozen=True, slots=True, eq=False)
class InitialState:
    """A recurrent state from which a sequence starts, in place of the model's empty state.

    Its arrays are read-only, since sequences share them.
    """

    root: str  # equal for equal states; the cache keeps states under it
    state: State
    logits: F32 | None = None  # [V] after the last token that the state has taken in, if they are known
    taken_in: int = 0  # of the prompt's first tokens; `root` is then of the state before these
    lora: LoraPairs | None = None  # with which the sequence runs


class FieldKind(Enum):
    """The kind of a recurrent tensor in a layer's state: a token shift, another vector, or a matrix for each head."""

    SHIFT = "shift"  # [D], what the next token is mixed with; a step reads the old one while it writes the new one
    VECTOR = "vector"  # [n], any other vector
    MATRIX = "matrix"  # [H, value, key], a matrix for each head


@dataclass(frozen=True, slots=True)
class StateField:
    """One recurrent tensor of a layer: its name, its shape in one layer, and its value before the first token."""

    name: str
    kind: FieldKind
    shape: tuple[int, ...]
    fill: float = 0.0


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The names of a model's tensors outside its layers, and the prefix of the names of the tensors in layers."""

    embedding: str  # [V, D]
    embedding_norm: str | None  # of a norm after the look-up, if any: what stands before `.weight` and `.bias` [D]
    head_norm: str  # of the norm before the head, likewise
    head: str  # [V, D]
    layers: str  # what stands before the number of a layer


@dataclass(frozen=True, slots=True)
class Norm:
    """A kind of norm: layer norm, or without `centres` RMS norm, which subtracts no mean and adds no bias."""

    epsilon: float = 1e-5
    centres: bool = True


LAYER_NORM: Final = Norm()


@dataclass(frozen=True, slots=True)
class MatrixPlace:
    """The place of a matrix in a model: the part of the model, such as the head or a layer's FFN, and the layer."""

    part: str  # "emb", "head", or in a layer "att", "ffn", or "adapters" for a low-rank matrix of either
    layer: int | None  # None outside the layers


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape(ABC):
    """The sizes of a model, all read from its tensors. Each RWKV version has a subclass with further sizes."""

    version: str  # such as "v7"
    num_layers: int  # L
    width: int  # D
    vocab_size: int  # V

    @property
    @abstractmethod
    def tensor_names(self) -> TensorNames:
        """The names of the model's tensors outside its layers, and the prefix of the names of the tensors in layers."""

    @property
    def norm(self) -> Norm:
        """The kind of the norms of whole vectors: after the embedding, in the layers, and before the head."""
        return LAYER_NORM

    def with_norm_epsilon(self, epsilon: float) -> Self | None:
        """Return a copy of this shape whose `norm` has the epsilon `epsilon`; None if the version's never has it."""
        return self if isclose(epsilon, self.norm.epsilon, rel_tol=1e-3) else None

    @abstractmethod
    def place_of(self, name: str) -> MatrixPlace:
        """Return the part of the model and the layer to which the matrix called `name` belongs."""

    @property
    @abstractmethod
    def layer_weights(self) -> int:
        """The number of weights in one layer's large matrices; running a token takes as many multiplications."""

    @property
    def has_head(self) -> bool:
        """True if the model's rows are logits; False if they are features, the last layer's output after the norm."""
        return True

    @property
    def row_size(self) -> int:
        """The length of a row that the model gives for a token: V logits, or D features without a head."""
        return self.vocab_size if self.has_head else self.width

    @property
    @abstractmethod
    def state_fields(self) -> tuple[StateField, ...]:
        """The descriptions of one layer's recurrent tensors, in the order in which they are stored."""

    @property
    @abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """The model's sizes that are shown to users, by name, in the order in which to show them."""

    @property
    def settings(self) -> str:
        """A text of the settings that change the model's results but are in none of its tensors.

        States made with other settings are not continued.
        """
        return ""

    @property
    def state_bytes(self) -> int:
        return 4 * self.num_layers * sum(prod(field.shape) for field in self.state_fields)

    def initial_state(self) -> dict[str, F32]:
        """Return the state before the first token: each field's name, and its fill value in an array for all layers."""
        return {
            field.name: np.full((self.num_layers, *field.shape), field.fill, np.float32) for field in self.state_fields
        }


class Model(Protocol):
    """The interface to the tensors of a model, such as an open model file."""

    @property
    def shape(self) -> ModelShape: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    def has(self, name: str) -> bool: ...

    def tensor(self, name: str) -> NDArray[Any]:
        """Return the tensor that BlinkDL's RWKV files call `name`, oriented as there, with its stored type.

        The array stays valid when the file is closed.
        """

    def block_type(self, name: str, /) -> str | None:
        """Return the name of the format in whose quantised blocks a tensor is stored; None for plain numbers."""

    def matrix(self, name: str, /, *, transposed: bool = False) -> Matrix:
        """Return a tensor for reading by rows: a matrix [R, C] as `tensor` has it, or [C, R] if `transposed`.

        It is valid while the model is open. Its numbers are those of `tensor`, but may be in quantised blocks.
        """


class Tokenizer(Protocol):
    """The protocol of a tokenizer, which encodes text as token ids and decodes single ids to bytes. Thread-safe."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def special_tokens(self) -> Mapping[str, int]: ...

    def encode(self, text: str, /) -> list[int]:
        """Return the token ids of `text` alone. Raises InvalidRequestError if it can't be encoded."""

    def decode_bytes(self, token: int, /) -> bytes:
        """Return the bytes of a token: UTF-8, but possibly only a part of a character. b"" for an id without text."""


def end_of_text(special_tokens: Mapping[str, int]) -> int:
    """Return the token that ends a text: 0, or if that is plain text, as in Qwen2's, the first special token."""
    ids = special_tokens.values()
    return 0 if not ids or 0 in ids else min(ids)


@dataclass(slots=True)  # not frozen, which triples what making one costs: there is one a token
class TokenRun:
    """Consecutive tokens of one sequence, to be run in one step from the state that its slot holds.

    The logits of the last `rows` positions are computed: 0 for a prefill chunk that is not the last, 1 at decode,
    `len(tokens)` if every position is scored. `targets`, if given, holds one token id a row; the read-out then has the
    logit at that id.

    `masks`, if given, returns the tokens from which each row's candidates are taken, as [rows, ceil(V / 32)], or None
    for all tokens. The bit `id % 32` of a row's word `id // 32` is set for a token that is allowed. A row allows at
    least one token; bits beyond the vocabulary do not count. `submit` calls `masks` once, while the device runs the
    tokens already; it must not raise.

    With a `draw`, the device draws what follows the last row, which then has no mask. The row of the read-out is that
    of the last token that was run.

    A run that `follows` goes on from the last draw in its slot, which may be in flight. It has a draw and one token:
    the last that was drawn, whatever `tokens` says. It does nothing if the earlier draw ended before its full `count`,
    or with a token in its `halts`: see `Drawn`. A runner of several steps at once takes no such run.
    """

    slot: int
    tokens: Sequence[int]
    rows: int = 0
    targets: Sequence[int] | None = None
    masks: Callable[[], NDArray[np.uint32] | None] | None = field(default=None, compare=False)
    draw: TokenDraw | None = field(default=None, compare=False)
    follows: bool = False
    lora: int | None = None  # the place of the LoRA with which the tokens run; see `Runner.write_lora`
    reads_row: bool = False  # `Readout.full_row` is likely to be asked for the last row


def mask_words(vocab_size: int) -> int:
    """Return the number of 32-bit words in a token mask, which has one bit for each token of the vocabulary."""
    return -(-vocab_size // 32)


def unpack_masks(masks: NDArray[np.uint32], vocab_size: int) -> NDArray[np.bool_]:
    """Return token masks of one bit a token [..., ceil(V / 32)] as booleans [..., V], True for each allowed token."""
    little_endian = np.ascontiguousarray(masks, "<u4").view(np.uint8)
    return np.unpackbits(little_endian, axis=-1, count=vocab_size, bitorder="little").view(np.bool_)


EmbeddingTask: TypeAlias = Literal["retrieval", "similarity", "classification"]
"""What a vector of a model made for embedding is for. EmbeddingRWKV calls these [RETR], [STS] and [CLS]."""

Batch: TypeAlias = Sequence[TokenRun]
"""The token runs of one step: at most one for each slot, and together at most `max_tokens` and `max_rows`."""


@dataclass(frozen=True, slots=True)
class Readout:
    """The results of one step, for each row of logits that the batch's runs asked for, in the order of the runs.

    The rows of one run are ordered by position.

    B runs, R rows, K candidates, taken from the tokens that a row's mask allows. If it allows fewer than K, the rest
    have the logit -inf and stand for no token. `full_row` reads a whole row back, after all steps that were submitted;
    it may be called until the second step after this one is submitted. The rows of a run that is not sound hold no
    probabilities.
    """

    ids: I32  # [R, K] token ids of the K greatest logits, greatest first, equal logits by ascending id
    logits: F32  # [R, K] their logits
    logsumexp: F32  # [R] log of the sum of exp over the whole row
    allowed_logsumexp: F32  # [R] the same over the tokens that the row's mask allows; `logsumexp` without a mask
    target_logits: F32  # [R] the logit at the row's target; NaN if the run has no targets
    sound: NDArray[np.bool_]  # [B] whether all rows of the run are finite; true of a run without rows
    full_row: Callable[[int], F32]  # row -> [V] logits, or [D] features of a model without a head
    drawn: Sequence[Drawn] = ()  # [B], or empty if no run has a draw


BufferUse: TypeAlias = Literal["weights", "states", "buffers"]
"""What a buffer on a device is for; "buffers" are the inputs and outputs of kernels."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The bytes of a device's memory that a model takes, by what they are for. Its fields are named as `BufferUse`."""

    weights: int = 0
    states: int = 0  # of all slots, the spare ones included
    buffers: int = 0  # of one step

    @property
    def total(self) -> int:
        return self.weights + self.states + self.buffers

    @classmethod
    def sum(cls, parts: Iterable[DeviceMemory]) -> DeviceMemory:
        """Return the memory that models on several devices take together."""
        return cls(*map(sum, zip(*map(astuple, parts), strict=True)))


@dataclass(frozen=True, slots=True)
class Ticket:
    """The handle of a submitted step, with which `Runner.collect` returns the step's results."""

    number: int


class PendingState(Protocol):
    """A copy of a sequence's state, made when reading began, that is on its way from the device to the host."""

    def done(self) -> bool:
        """Return True if the state has arrived on the host. Does not block. For the thread that owns the runner."""

    def result(self) -> dict[str, F32]:
        """Wait until the state has arrived on the host, and return it in arrays that belong to the caller.

        For the thread that owns the runner until `done` has returned True, then for any thread. Raises DeviceError if
        it could not be read, or had not been read when the runner was closed.
        """


class Runner(Protocol):
    """A model on a device, with the live state of one sequence in each slot. Only one thread, its owner, may use it.

    A result does not depend on the other runs of a batch, on the slot, or on how a sequence was cut into runs.
    """

    @property
    def shape(self) -> ModelShape: ...

    @property
    def num_slots(self) -> int: ...

    @property
    def max_tokens(self) -> int:
        """The most tokens that one step runs, over all its sequences; it bounds the work of one submit."""

    @property
    def max_rows(self) -> int: ...

    @property
    def max_draws(self) -> int:
        """The most tokens that the device itself draws for one sequence in one step; 0 if it draws none."""

    @property
    def max_draw_logprobs(self) -> int:
        """How many of the likeliest tokens' log-probabilities the device can return with each token that it draws."""

    @property
    def num_penalty_slots(self) -> int:
        """The number of slots, from the first on, in which the device can apply penalties when it draws tokens."""

    @property
    def steps_at_once(self) -> int:
        """How many steps are computed at the same time, if their sequences differ: 2 for layers on several devices."""

    @property
    def lora_room(self) -> LoraRoom: ...

    def write_lora(self, place: int, lora: LoraPairs) -> None:
        """Put a LoRA at one of the places of `lora_room`, in place of another, for steps that are submitted later.

        Raises InvalidRequestError if there is no room for it, and DeviceError.
        """

    def submit(self, batch: Batch) -> Ticket:
        """Have the device run every token of `batch` and advance its slots' states; return without waiting for it.

        At most two steps are in flight: a third call waits until the device has done the first, even if that was not
        collected. Steps run in the order of their submission, as do the reads, writes and copies of states between
        them. If a draw is for more than one token, every run must be one token long and have a draw.

        Raises InvalidRequestError for a batch that breaks the contract, and nothing has changed then. Raises the same
        for masks of another shape, and StepError if the device refuses the step; the states of the batch's slots are
        then undefined.
        """

    def collect(self, ticket: Ticket) -> Readout:
        """Wait for a submitted step and return its results. Does not wait for later steps, nor for one without rows.

        Each ticket is collected once, in the order of submission; InvalidRequestError otherwise. Raises StepError if
        the device failed. The states of the batch's slots are then undefined, except those of runs that did nothing.
        They stay so until other states are put there, which may have been done since the submission.
        """

    def write_state(self, slot: int, state: State | None) -> None:
        """Write `state` to the slot number `slot` of the device; None is the state before the first token."""

    def start_read(self, slot: int) -> PendingState:
        """Start to copy a slot's state to the host. The slot may be written, or run, right after the call.

        Does not wait for the device, unless it has no room for a further read. Then it waits for the oldest, which can
        still be had by its result.
        """

    def read_state(self, slot: int) -> dict[str, F32]:
        """Wait for all earlier steps, and return a copy of the state in the slot number `slot` on the host."""

    def copy_state(self, source: int, target: int) -> None:
        """Copy the state in the slot `source` to the slot `target`, on the device."""

    def together(self) -> AbstractContextManager[None]:
        """Return a context in which writes, reads and copies of states may wait for its end, to save submissions.

        A read that waits is not `done`, and its result ends the wait. All else is the same as without.
        """

    def close(self) -> None:
        """Free the device's memory. Idempotent."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The results of a traced step: the logits of its rows, and what chosen layers put out."""

    logits: F32  # [R, V]
    hidden: Mapping[int, F32]  # layer -> [T, D], the residual stream after it


class TracingRunner(Runner, Protocol):
    """A runner that also returns all logits of a step, and the residual stream after any layer."""

    def trace(self, batch: Batch, layers: Collection[int]) -> Trace:
        """Run every token of `batch`, advance its slots' states, wait for the device, and return what it computed.

        `batch` has no masks and draws. There may be no other step in flight. Raises InvalidRequestError and StepError
        as `submit` does.
        """


class ReadyState:
    """A `PendingState` whose state is on the host from the start. The caller must not change `state` any more."""

    def __init__(self, state: dict[str, F32]) -> None:
        self._state = state

    def done(self) -> bool:
        return True

    def result(self) -> dict[str, F32]:
        return {name: values.copy() for name, values in self._state.items()}


def run_step(runner: Runner, batch: Batch) -> Readout:
    return runner.collect(runner.submit(batch))
