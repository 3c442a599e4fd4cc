"""The types that all layers share: a model's shape, a state, a step's batch and draws, and its read-out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.quantised import Blocks

MOST_DRAWS: Final = 16
"""The most tokens that a device draws for a sequence in one submit, if nothing else limits them."""

DRAW_TEMPERATURES: Final = (0.01, 100.0)
"""The least and the greatest temperature with which a device draws."""

DRAW_PENALTIES: Final = (1e-6, 100.0)
"""The least and the greatest presence or frequency penalty that a device subtracts; 0 is allowed, too."""

DRAW_DECAYS: Final = (0.1, 1.0)
"""The least and the greatest decay of penalties on a device."""

DRAW_REPEATS: Final = (1.0, 100.0)
"""The least and the greatest `DrawPenalties.repeat`; 1 changes nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawPenalties:
    """Penalties that a device applies to the logits of a text's tokens, as `rnn_engine.sampling.Adjustments` does.

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
"""The most tokens to which a device adds a bias in one draw."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawBiases:
    """Biases that a device adds to the logits of some tokens, n in number."""

    tokens: NDArray[np.int32]  # [n] all different, at most `MOST_DRAW_BIASES`
    values: NDArray[np.float32]  # [n]


MOST_DRAW_LOGPROBS: Final = 20
"""The most alternatives whose log-probabilities a device returns with each token that it draws."""


@dataclass(slots=True)
class TokenDraw:
    """How the device draws the tokens that follow a run, the first from the run's last row.

    It draws as `rnn_engine.sampling.Nucleus` does. With `min_p`, it draws as a `Chain` of llama-server's top-k, top-p,
    min-p and temperature. It uses the same random numbers, and so always draws the token that the host would draw.
    Every token except the last is run in the same step, and the next one is drawn from its row. Drawing ends after
    `count` tokens, after one of `halts`, or at a row that does not decide: see `Drawn`.
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
    """Natural-log probabilities under the model, before penalties and bias: a token's own, and the likeliest ones."""

    own: float
    top: tuple[tuple[int, float], ...]  # (token, log-probability), likeliest first, equal ones by ascending id


@dataclass(slots=True)  # not frozen, which triples what making one costs: there is one for each run
class Drawn:
    """The tokens that the device has drawn after one run, and how the drawing ended.

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
        """The number of tokens that were run; those of the run itself count as one."""
        return 1 + len(self.tokens) - self.is_settled


NOTHING_DRAWN = Drawn((), is_settled=False)

F32: TypeAlias = NDArray[np.float32]
I32: TypeAlias = NDArray[np.int32]

State: TypeAlias = Mapping[str, F32]
"""All recurrent tensors of one sequence on the host: field name -> [L, *StateField.shape] f32."""


@dataclass(frozen=True, slots=True, eq=False)
class InitialState:
    """A state that a sequence starts from, in place of the fill values of `StateField`.

    Its arrays are read-only, since sequences share them.
    """

    root: str  # equal for equal states; the cache keeps states under it
    state: State
    logits: F32 | None = None  # [V] after the last token that the state has taken in, if they are known


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
    """The names of a model's tensors outside its layers, and the beginning of the names of those in layers."""

    embedding: str  # [V, D]
    embedding_norm: str  # of a layer norm after the look-up: what stands before `.weight` and `.bias` [D]
    head_norm: str  # of the layer norm before the head, likewise
    head: str  # [V, D]
    layers: str  # what stands before the number of a layer


@dataclass(frozen=True, slots=True)
class MatrixPlace:
    """The place of a matrix in a model: its part and its layer."""

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
        """The names of the embedding, the head and their norms, and the beginning of the names in layers."""

    @abstractmethod
    def place_of(self, name: str) -> MatrixPlace:
        """Return the place in the model of the matrix with this name."""

    @property
    @abstractmethod
    def layer_weights(self) -> int:
        """The number of weights in the large matrices of one layer; each token takes a multiplication for each."""

    @property
    def takes_embeddings(self) -> bool:
        """True if a vector may stand for a token; False if layers also need the token's id."""
        return True

    @property
    @abstractmethod
    def state_fields(self) -> tuple[StateField, ...]:
        """The recurrent tensors of one layer, in the order in which they are stored."""

    @property
    @abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """The sizes that users are shown, by name, in the order to show them."""

    @property
    def settings(self) -> str:
        """Settings, as a text, that change the results and are in no tensor.

        States made with other settings are not continued.
        """
        return ""

    @property
    def state_bytes(self) -> int:
        """The number of bytes of one state in f32."""
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
        """Return the tensor called `name`, in BlinkDL's naming and orientation, with the type that it is stored in.

        It stays valid when the file is closed.
        """
        ...

    def block_type(self, name: str, /) -> str | None:
        """Return the name of the quantised blocks that a tensor's rows are stored in; None for plain numbers."""
        ...

    def blocks(self, name: str, /) -> Blocks | None:
        """Return a matrix in its stored quantised blocks; None for plain numbers or blocks of an unknown format."""
        ...


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

    `embeddings`, if given, are what the first layer takes in place of the tokens' rows of the embedding, before its
    layer norm: [len(tokens), D].

    With a `draw`, the device draws what follows the last row, which then has no mask. The row of the read-out is that
    of the last token that was run.

    A run that `follows` goes on from the last draw in its slot, which may be in flight. It has a draw and one token:
    the last that was drawn, whatever `tokens` says. It does nothing if the earlier draw ended before its full `count`,
    or with a token in its `halts`: see `Drawn`.
    """

    slot: int
    tokens: Sequence[int]
    rows: int = 0
    targets: Sequence[int] | None = None
    masks: Callable[[], NDArray[np.uint32] | None] | None = field(default=None, compare=False)
    embeddings: F32 | None = field(default=None, compare=False)
    draw: TokenDraw | None = field(default=None, compare=False)
    follows: bool = False


def mask_words(vocab_size: int) -> int:
    """Return how many 32-bit words the mask of one row takes."""
    return -(-vocab_size // 32)


def unpack_masks(masks: NDArray[np.uint32], vocab_size: int) -> NDArray[np.bool_]:
    """Return the bit masks [..., ceil(V / 32)] as booleans [..., V], True for each token that is allowed."""
    little_endian = np.ascontiguousarray(masks, "<u4").view(np.uint8)
    return np.unpackbits(little_endian, axis=-1, count=vocab_size, bitorder="little").view(np.bool_)


Batch: TypeAlias = Sequence[TokenRun]
"""The runs of one step: at most one for each slot, and in all at most the runner's `max_tokens` and `max_rows`."""


@dataclass(frozen=True, slots=True)
class Readout:
    """The results of a step, one for each logit row, ordered as the batch's runs and, inside a run, by position.

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
    full_row: Callable[[int], F32]  # row -> [V] logits
    drawn: Sequence[Drawn] = ()  # [B], or empty if no run has a draw


@dataclass(frozen=True, slots=True)
class Ticket:
    """The handle of a step that was submitted, with which its read-out is collected."""

    number: int


class PendingState(Protocol):
    """A state that is being read from a slot to the host, with the values that it had when the read started."""

    def done(self) -> bool:
        """Return True if the state has arrived. Does not block. For the thread that owns the runner."""
        ...

    def result(self) -> dict[str, F32]:
        """Wait until the state has arrived, and return it in arrays that belong to the caller.

        For the thread that owns the runner until `done` has returned True, then for any thread. Raises DeviceError if
        it could not be read, or had not been read when the runner was closed.
        """
        ...


class Runner(Protocol):
    """A model on a device, with a live state for each slot. Not thread-safe: one worker thread owns it.

    A result does not depend on the other runs of a batch, on the slot, or on how a sequence was cut into runs.
    """

    @property
    def shape(self) -> ModelShape: ...

    @property
    def num_slots(self) -> int: ...

    @property
    def max_tokens(self) -> int:
        """The most tokens that one step takes over all its runs; it bounds the work of one submit."""
        ...

    @property
    def max_rows(self) -> int:
        """The most logit rows that one step computes."""
        ...

    @property
    def max_draws(self) -> int:
        """The most tokens that one step draws after a run; 0 if the device draws none."""
        ...

    @property
    def max_draw_logprobs(self) -> int:
        """The most alternatives (the likeliest tokens) that a draw can return with each token."""
        ...

    @property
    def num_penalty_slots(self) -> int:
        """The number of slots, from the first on, in which a draw may have penalties."""
        ...

    def submit(self, batch: Batch) -> Ticket:
        """Have the device run every token of `batch` and advance its slots' states; return without waiting for it.

        At most two steps are in flight: a third call waits until the device has done the first, even if that was not
        collected. Steps run in the order of their submission, as do the reads, writes and copies of states between
        them. If a draw is for more than one token, every run must be one token long and have a draw.

        Raises InvalidRequestError for a batch that breaks the contract, and nothing has changed then. Raises the same
        for masks of another shape, and StepError if the device refuses the step; the states of the batch's slots are
        then undefined.
        """
        ...

    def collect(self, ticket: Ticket) -> Readout:
        """Wait for a step and return its read-out. Does not wait for a later step, nor for one that has no rows.

        Each ticket is collected once, in the order of submission; InvalidRequestError otherwise. Raises StepError if
        the device failed. The states of the batch's slots are then undefined, except those of runs that did nothing.
        They stay so until other states are put there, which may have been done since the submission.
        """
        ...

    def write_state(self, slot: int, state: State | None) -> None:
        """Write `state` to `slot`; None is the state before the first token."""
        ...

    def start_read(self, slot: int) -> PendingState:
        """Start to read the state in `slot` to the host. The slot may be written, or run, right after the call.

        Does not wait for the device, unless it has no room for a further read. Then it waits for the oldest, which can
        still be had by its result.
        """
        ...

    def read_state(self, slot: int) -> dict[str, F32]:
        """Wait for the state in `slot`, and return a copy of it on the host."""
        ...

    def copy_state(self, source: int, target: int) -> None:
        """Copy the state in the slot `source` to the slot `target`, on the device."""
        ...

    def close(self) -> None:
        """Free the device's memory. Idempotent."""
        ...


class ReadyState:
    """A `PendingState` that is on the host from the start. The caller must not change `state` any more."""

    def __init__(self, state: dict[str, F32]) -> None:
        self._state = state

    def done(self) -> bool:
        return True

    def result(self) -> dict[str, F32]:
        return {name: values.copy() for name, values in self._state.items()}


def run_step(runner: Runner, batch: Batch) -> Readout:
    """Submit `batch` and wait for its read-out."""
    return runner.collect(runner.submit(batch))
