"""`FrozenState`, a checked read-only state from which sequences start, and `Payload`, the arrays of a checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StateError
from rnn_engine.tensor_files.source import show
from rnn_engine.types import F32, FieldKind, InitialState, LoraPairs, ModelShape, State

# Checks that arrays are a state of a model: all its fields, in the right shapes, with only finite numbers.


class Shaped(Protocol):
    """The interface of anything with a shape: an array, or the header entry that describes an array in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def check_state(arrays: Mapping[str, NDArray[Any]], shape: ModelShape, source: str) -> dict[str, F32]:
    """Return a model's state in f32. Raises StateError, beginning with `source`, for wrong or infinite values."""
    check_fields(arrays, shape, source)
    return {name: check_array(array, array.shape, f"{source}: {name}") for name, array in arrays.items()}


def check_fields(arrays: Mapping[str, Shaped], shape: ModelShape, source: str) -> None:
    """Raise StateError, which begins with `source`, unless there are exactly the fields, [L, ...] each."""
    expected = {field.name: (shape.num_layers, *field.shape) for field in shape.state_fields}
    if set(arrays) != set(expected):
        raise StateError(
            f"{source}: holds the fields {show(str(sorted(arrays)))}; a {shape.version} state has {sorted(expected)}"
        )
    for name, size in expected.items():
        check_shape(arrays[name].shape, size, f"{source}: {name}")


def check_array(array: NDArray[Any], expected: tuple[int, ...], what: str) -> F32:
    """Return `array` in f32. Raises StateError, which names it `what`, for another shape or infinite values."""
    check_shape(array.shape, expected, what)
    with np.errstate(over="ignore", invalid="ignore"):  # a value too large for f32 becomes infinity, found below
        values = np.ascontiguousarray(array, np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        bad = np.argwhere(~finite)
        position = [int(index) for index in bad[0]]
        raise StateError(f"{what} holds {len(bad)} NaN or infinite values, the first at {position}; all must be finite")
    return values


def check_shape(found: tuple[int, ...], expected: tuple[int, ...], what: str) -> None:
    """Raise StateError if shape `found` differs from shape `expected`. The error message begins with `what`."""
    if found != expected:
        raise StateError(f"{what} has shape {list(found)}; this model needs {list(expected)}")


# The arrays of a checkpoint on the host: the recurrent tensors, in f32 or f16, and the last logits.

Precision: TypeAlias = Literal["f32", "f16"]

LARGEST_F16 = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """The state and the last logits of one checkpoint, as read-only arrays in host memory."""

    state: Mapping[str, NDArray[Any]]  # field name -> [L, *StateField.shape] f32 or f16
    logits: F32 | None  # [V]

    @property
    def num_bytes(self) -> int:
        """The total size of the state's arrays and the logits in bytes."""
        logits = 0 if self.logits is None else self.logits.nbytes
        return logits + sum(array.nbytes for array in self.state.values())

    def expand(self) -> State:
        """Return the state of a checkpoint with all arrays in f32."""
        return {name: array.astype(np.float32, copy=False) for name, array in self.state.items()}

    def stored_as(self, precision: Precision) -> Payload:
        """Return a copy with the state in f32 or f16, except for arrays beyond f16's range, and logits in f32."""
        if precision == "f32":
            return Payload(self.expand(), self.logits)
        return Payload({name: _halved(array) for name, array in self.state.items()}, self.logits)


def _halved(array: NDArray[Any]) -> NDArray[Any]:
    # A tensor with a value beyond f16's range stays f32: an infinity would spoil all later steps.
    return array.astype(np.float16) if np.abs(array).max(initial=0) <= LARGEST_F16 else array


NO_INITIAL_STATE = "none"
"""The root of sequences that start from the fill values."""

MAX_LAST_TOKENS = 32
"""How many of a state's last tokens are stored with it: enough for any separator of records."""


@dataclass(frozen=True, slots=True)
class TokenPath:
    """How a state was reached: the root of the state before it, and the tokens that have been run from there."""

    root: str
    tokens: bytes  # packed


@dataclass(frozen=True, slots=True, eq=False)
class FrozenState:
    """A read-only state from which sequences can start, identified by the digest of its values.

    Named states, sequences and the cache share its arrays.
    """

    digest: str  # of the values without the logits, which follow from them; equal for equal states
    state: State
    logits: F32 | None  # [V] those after the last token, if they are known
    num_tokens: int | None  # that it has taken in: 0 for a tuned state, None if there were some but not known how many
    last_tokens: tuple[int, ...]  # the last of them, as far as they are known
    has_shifts: bool  # whether the token shifts are set too; a tuned state leaves them at zero
    path: TokenPath | None = None  # if all tokens are known, and this server has run them
    lora: LoraPairs | None = None  # with which the state was made, and sequences that start from it run

    @property
    def for_request(self) -> InitialState:
        """The state as the `InitialState` of a request, identified by its digest."""
        return InitialState(self.digest, self.state, self.logits, lora=self.lora)

    @property
    def num_bytes(self) -> int:
        return Payload(self.state, self.logits).num_bytes + (0 if self.lora is None else self.lora.num_bytes)


def freeze_state(
    state: State,
    shape: ModelShape,
    source: str,
    *,
    logits: F32 | None = None,
    num_tokens: int = 0,
    last_tokens: Sequence[int] = (),
    lora: LoraPairs | None = None,
) -> FrozenState:
    """Check and copy the arrays of `state` and return them as a `FrozenState`, which shares `lora`.

    Raises StateError if they do not fit the model; the message begins with `source`. `num_tokens` may be 0 if it is
    unknown: the result has None instead if a token shift is not zero, since such a state has taken in some tokens.
    """
    checked = check_state(state, shape, source)
    kept = {name: _read_only(array) for name, array in checked.items()}
    if logits is not None:
        logits = _read_only(check_array(logits, (shape.row_size,), f"{source}: logits"))
    shifts = [kept[field.name] for field in shape.state_fields if field.kind is FieldKind.SHIFT]
    has_shifts = any(bool(shift.any()) for shift in shifts)
    known = None if num_tokens == 0 and has_shifts else num_tokens
    last = tuple(last_tokens)[-MAX_LAST_TOKENS:]
    digest = _digest(kept) if lora is None else f"{_digest(kept)}+{lora.digest}"
    return FrozenState(digest, kept, logits, known, last, has_shifts, lora=lora)


def freeze_lora(pairs: Mapping[str, tuple[NDArray[Any], NDArray[Any]]], source: str) -> LoraPairs:
    """Check and copy pairs A [R, in] and B [out, R] by the names of their matrices, and return them as a LoRA.

    Raises StateError, which begins with `source`, for other shapes and values that are not finite.
    """
    kept: dict[str, tuple[F32, F32]] = {}
    for name, (down, up) in sorted(pairs.items()):
        if down.ndim != 2 or up.ndim != 2 or len(down) != up.shape[1] or not len(down):
            raise StateError(f"{source}: {name} has a pair {list(down.shape)}, {list(up.shape)} of no common rank")
        down, up = (check_array(half, half.shape, f"{source}: the LoRA for {name}") for half in (down, up))
        kept[name] = _read_only(down), _read_only(up)
    digest = _digest(
        {f"{name}.{half}": array for name, pair in kept.items() for half, array in zip("AB", pair, strict=True)}
    )
    return LoraPairs(digest, kept)


def _read_only(array: F32) -> F32:
    copy = array.copy()
    copy.setflags(write=False)
    return copy


def _digest(state: State) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(state[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
