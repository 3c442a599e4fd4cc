"""The field `state` of requests: what to start from, or what to mix, in every form that clients send."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import Field, PlainValidator, WithJsonSchema

from rnn_engine.sampling import MixKind
from rnn_engine.types import F32
from server.limits import Limits
from server.schemas.base import STRING, RefusedError, RequestBody, is_integers

_FORMS = (
    'a name or an id, "none", {"data": numbers or base64 of f32, "shape": [D, N + 2, L, 1]} or {"path": a file}, '
    "the last two perhaps with name and id"
)
_MIX_FORM = (
    "a list of objects, each with a weight and one of name, id, path, or data and shape, and all but the first perhaps "
    "with a prompt"
)
_MAX_NAME_BYTES = 255  # of a file or folder, on every usual file system
_LABELS = {"name", "id"}  # ai00's clients send them; what a state is known by here is its values


@dataclass(frozen=True, slots=True, eq=False)
class InlineState:
    """The numbers of a state in ai00's order."""

    data: F32  # [L * (N + 2) * D] unless the client is wrong
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StatePath:
    """A file in the folder of states."""

    path: str


StateRef: TypeAlias = str | InlineState | StatePath


@dataclass(frozen=True, slots=True, eq=False)
class WeightedRef:
    """One of the states that a request mixes."""

    ref: StateRef | None  # None = the default state
    weight: float
    prompt: str | None = None  # instead of the request's


def _parse_state(value: object) -> StateRef:
    match value:
        case str() if 0 < len(value) <= _MAX_NAME_BYTES:
            return value
        case {"data": data, "shape": [_, _, _, _] as shape, **rest} if rest.keys() <= _LABELS and is_integers(shape):
            return InlineState(parse_numbers(data), tuple(shape))
        case {"path": str(path), **rest} if rest.keys() <= _LABELS:
            if any(len(part.encode()) > _MAX_NAME_BYTES for part in path.split("/")):
                raise RefusedError(path, f"a path whose parts have at most {_MAX_NAME_BYTES} bytes each", below="path")
            return StatePath(path)
    raise RefusedError(value, _FORMS)


def _parse_states(value: object) -> StateRef | tuple[WeightedRef, ...]:
    if not isinstance(value, list):
        return _parse_state(value)
    if not value:
        raise RefusedError(value, _MIX_FORM)
    return tuple(_parse_weighted(number, item) for number, item in enumerate(value))


def _parse_weighted(number: int, value: object) -> WeightedRef:
    match value:
        case {"weight": int() | float() as weight, **state} if not isinstance(weight, bool):
            forms = {str(key): item for key, item in state.items() if key != "prompt"}
            prompt = state.get("prompt")
            if prompt is not None and (number == 0 or not isinstance(prompt, str)):
                what = "null, since the first state takes the prompt of the request" if number == 0 else "a text"
                raise RefusedError(prompt, what, below=f"{number}.prompt")
            return WeightedRef(_parse_labelled(number, forms), _as_float(number, weight), prompt)
    raise RefusedError(value, _MIX_FORM, below=str(number))


def _parse_labelled(number: int, state: dict[str, object]) -> StateRef | None:
    """Return what one object of a mix means, without its weight and prompt."""
    try:
        if not state.keys() <= _LABELS:
            return _parse_state(state)
        labels = [label for label in state.values() if label is not None]
        if len(labels) > 1 or not all(isinstance(label, str) for label in labels):
            raise RefusedError(state, "a name or an id, not both, as a string")
        return _parse_state(labels[0]) if labels else None
    except RefusedError as error:
        below = str(number) if error.below is None else f"{number}.{error.below}"
        raise RefusedError(error.value, error.allowed, below=below) from None


def _as_float(number: int, weight: float) -> float:
    try:
        return float(weight)
    except OverflowError:
        raise RefusedError(weight, "a number of an ordinary size", below=f"{number}.weight") from None


def parse_numbers(data: object) -> F32:
    """Return numbers from a list or from base64 of f32. Raises RefusedError."""
    try:
        if isinstance(data, str):
            return np.frombuffer(base64.b64decode(data, validate=True), "<f4").astype(np.float32)
        if isinstance(data, list) and set(map(type, data)) <= {int, float}:  # numpy pads strings to the longest
            with np.errstate(over="ignore"):  # what does not fit f32 is refused later, as infinity
                return np.array(data, np.float64).astype(np.float32)
    except (binascii.Error, ValueError, OverflowError):
        pass
    raise RefusedError(data, "a flat list of numbers, or base64 of f32 numbers", below="data")


_INLINE = {
    "type": "object",
    "properties": {"data": {"type": "array", "items": {"type": "number"}}, "shape": {"type": "array"}},
}
_PATH = {"type": "object", "properties": {"path": {"type": "string"}}}
State: TypeAlias = Annotated[
    StateRef | None,
    PlainValidator(_parse_state),
    WithJsonSchema({"anyOf": [STRING, _INLINE, _PATH, {"type": "null"}]}),
]
_WEIGHTED = {
    "type": "object",
    "properties": {"name": STRING, "id": STRING, "weight": {"type": "number"}, "prompt": STRING},
    "required": ["weight"],
}
States: TypeAlias = Annotated[
    StateRef | tuple[WeightedRef, ...] | None,
    PlainValidator(_parse_states),
    WithJsonSchema({"anyOf": [STRING, _INLINE, _PATH, {"type": "array", "items": _WEIGHTED}, {"type": "null"}]}),
]


_STATE_FORMS = (
    "What to start from: the name or id of a state; `none` for an empty one; a state in ai00's order, as "
    '{"data": ..., "shape": ...}; or {"path": ...}, a file in the folder of states. Null is the default state.'
)


class CacheBody(RequestBody):
    """What a client may set on any request that runs the model."""

    cache_salt: str | None = Field(
        default=None,
        min_length=1,
        description="Only requests of the same API key with the same salt go on from what this one leaves in the "
        "cache, as with vLLM; keep it secret where it divides people who share a key.",
    )


class StateRefBody(CacheBody):
    """The same where a request starts from one state."""

    state: State = Field(default=None, description=_STATE_FORMS)


class ModelNameBody(RequestBody):
    """A body in which clients say a model, too, as OpenAI's do."""

    model: str | None = Field(
        default=None, description="The name of a model as `/v1/models` lists it; null is the default one."
    )


class ModelBody(StateRefBody, ModelNameBody):
    """What starts from one state, and says a model."""


class MixBody(CacheBody, ModelNameBody):
    """What starts from one state or from several, and says a model."""

    state: States = Field(
        default=None,
        description=f"{_STATE_FORMS} A list mixes states: objects with one of `name`, `id`, `path`, or `data` and "
        "`shape` (null or none of them: the default state), a `weight`, and, but for the first, perhaps a `prompt`, a "
        "text that this state takes in instead of the request's. Each takes a slot. What `save_as` keeps is the first.",
    )
    mix: MixKind = Field(
        default="log",
        description="How the next-token distributions of several states are mixed: `log`, the weighted sum of their "
        "log-probabilities, where a negative weight makes likely what its state does not expect; or `probability`, the "
        "weighted mean of their probabilities.",
    )

    def check(self, limits: Limits) -> None:
        super().check(limits)
        if self.weighted is not None:
            limits.check("max_mixed_states", "state", len(self.weighted))
            prompt_bytes = sum(len((one.prompt or "").encode()) for one in self.weighted)
            limits.check("max_text_bytes", "state", prompt_bytes)

    @property
    def weighted(self) -> tuple[WeightedRef, ...] | None:
        """The states that are mixed; None where the request starts from one."""
        return self.state if isinstance(self.state, tuple) else None
