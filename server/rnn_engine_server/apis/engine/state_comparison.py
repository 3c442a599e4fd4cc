"""The route that compares two states."""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine.operations.naming import F64, FieldDifference, state_difference
from rnn_engine.types import ModelShape
from rnn_engine_server.apis.common.states import ModelNameBody, ResolvedState, State, resolve_state
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import RouteTable
from rnn_engine_server.core.workers import work
from rnn_engine_states.frozen import NO_INITIAL_STATE


class CompareStatesRequest(ModelNameBody):
    """A request to compare two states, each given in any form that the `state` of a request may have."""

    state: State = Field(
        default=None,
        description="The name or id of a state; `none` for an empty one; a state in ai00's order, as "
        '{"data": ..., "shape": ...}; or {"path": ...}, a file in the folder of states. Null is the default state.',
    )
    other: State = Field(default=None, description="The same for the other state. Null is an empty one.")


class ComparedState(TypedDict):
    """One of the two states that were compared.

    `name` and `id` are null unless the request names the state; `digest` is equal for equal states.
    """

    name: str | None
    id: str | None
    digest: str


class ComparedField(TypedDict):
    """The comparison of one tensor of two states.

    For each layer there is a list: of a number for each head if the tensor is a `matrix`, else of one number. `norms`
    and `other_norms` are Euclidean. `differences` are the norms of the difference over the mean of both norms: 0 if the
    states are equal, 2 if they are opposite or one state is zero.
    """

    name: str
    kind: Literal["shift", "vector", "matrix"]
    norms: list[list[float]]
    other_norms: list[list[float]]
    differences: list[list[float]]


class StateComparison(TypedDict):
    """The difference between two states, tensor by tensor. `fields` are in the order of the model's state tensors."""

    object: Literal["state.comparison"]
    state: ComparedState
    other: ComparedState
    fields: list[ComparedField]


_DIGITS = 6  # significant digits of each number


ROUTES = RouteTable()


@ROUTES.post("/v1/states/compare")
async def compare(call: Call, body: CompareStatesRequest) -> StateComparison:
    """How far two states are apart, by field, layer and head."""
    engine = call.engine
    first = await resolve_state(engine, body.state)
    second = await resolve_state(engine, NO_INITIAL_STATE if body.other is None else body.other)
    shape = engine.info.shape
    fields = await work(call, shape.state_bytes, partial(_fields, first, second, shape))
    return {
        "object": "state.comparison",
        "state": _compared(first),
        "other": _compared(second),
        "fields": fields,
    }


def _fields(first: ResolvedState, second: ResolvedState, shape: ModelShape) -> list[ComparedField]:
    empty = shape.initial_state()
    states = [empty if one.frozen is None else one.frozen.state for one in (first, second)]
    return [_field(difference) for difference in state_difference(states[0], states[1], shape)]


def _field(difference: FieldDifference) -> ComparedField:
    return {
        "name": difference.name,
        "kind": difference.kind.value,
        "norms": _numbers(difference.norms),
        "other_norms": _numbers(difference.other_norms),
        "differences": _numbers(difference.relative),
    }


def _numbers(rows: F64) -> list[list[float]]:
    return [[float(f"{number:.{_DIGITS}g}") for number in row] for row in rows.tolist()]


def _compared(resolved: ResolvedState) -> ComparedState:
    named = resolved.named
    return {
        "name": None if named is None else named.name,
        "id": None if named is None else str(named.id),
        "digest": NO_INITIAL_STATE if resolved.frozen is None else resolved.frozen.digest,
    }
