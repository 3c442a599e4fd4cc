"""The field `state` of requests: what to start from, in every form that clients send."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import Field, PlainValidator, WithJsonSchema

from rnn_engine.types import F32
from server.schemas.base import STRING, RefusedError, RequestBody, is_integers

_FORMS = (
    'a name or an id, "none", {"data": numbers or base64 of f32, "shape": [D, N + 2, L, 1]} or {"path": a file}, '
    "the last two perhaps with name and id"
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


def _parse_state(value: object) -> StateRef:
    match value:
        case str() if 0 < len(value) <= _MAX_NAME_BYTES:
            return value
        case {"data": data, "shape": [_, _, _, _] as shape, **rest} if rest.keys() <= _LABELS and is_integers(shape):
            return InlineState(_numbers(data), tuple(shape))
        case {"path": str(path), **rest} if rest.keys() <= _LABELS:
            if any(len(part.encode()) > _MAX_NAME_BYTES for part in path.split("/")):
                raise RefusedError(path, f"a path whose parts have at most {_MAX_NAME_BYTES} bytes each", below="path")
            return StatePath(path)
    raise RefusedError(value, _FORMS)


def _numbers(data: object) -> F32:
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


class StateRefBody(RequestBody):
    """What a client may set on any request that runs the model."""

    state: State = Field(
        default=None,
        description="What to start from: the name or id of a state; `none` for an empty one; a state in ai00's order, "
        'as {"data": ..., "shape": ...}; or {"path": ...}, a file in the folder of states. Null is the default state.',
    )
    cache_salt: str | None = Field(
        default=None,
        min_length=1,
        description="Only requests of the same API key with the same salt go on from what this one leaves in the "
        "cache, as with vLLM; keep it secret where it divides people who share a key.",
    )


class ModelBody(StateRefBody):
    """The same where clients say a model, too, as OpenAI's do."""

    model: str | None = Field(
        default=None, description="Any name: the one loaded model answers, and says its own name."
    )
