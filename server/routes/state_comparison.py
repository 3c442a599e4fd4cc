"""Two states side by side."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from rnn_engine.operations.state_difference import F64, FieldDifference, state_difference
from rnn_engine.types import ModelShape
from server.http.bodies import json_response, read_body
from server.http.context import engine_of
from server.http.routing import Route
from server.http.work import work
from server.schemas.state_comparison import ComparedField, ComparedState, CompareStatesRequest, StateComparison
from server.state.resolve import ResolvedState, resolve_state
from states.frozen import NO_INITIAL_STATE

_DIGITS = 6  # that are significant, of each number


async def compare(request: web.Request) -> web.Response:
    body = await read_body(request, CompareStatesRequest)
    engine = engine_of(request)
    first = await resolve_state(engine, body.state)
    second = await resolve_state(engine, NO_INITIAL_STATE if body.other is None else body.other)
    shape = engine.info.shape
    fields = await work(request, shape.state_bytes, partial(_fields, first, second, shape))
    answer: StateComparison = {
        "object": "state.comparison",
        "state": _compared(first),
        "other": _compared(second),
        "fields": fields,
    }
    return json_response(answer)


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


ROUTES = (
    Route(
        "POST",
        "/v1/states/compare",
        compare,
        "How far two states are apart, by field, layer and head.",
        StateComparison,
        request=CompareStatesRequest,
        ai00_paths=False,
    ),
)
