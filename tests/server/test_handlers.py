"""Routes that are declared at their handlers: what the annotations and docstring of a handler say of its route."""

from __future__ import annotations

from typing_extensions import TypedDict

from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import Encoded, Long, RouteTable
from rnn_engine_server.core.schema import RequestBody

ROUTES = RouteTable(uses_model=False, scope=Scope.MANAGE)


class Body(RequestBody):
    number: int = 0


class Answer(TypedDict):
    number: int


@ROUTES.post("/twice", "/double")
async def twice(_call: Call, body: Body) -> Answer:
    """Return twice a number.

    It may be negative.
    """
    return {"number": 2 * body.number}


@ROUTES.get("/numbers", scope=Scope.USE)
async def numbers(_call: Call) -> Long[list[int]]:
    """Return some numbers."""
    return Long(3, lambda: [1, 2, 3])


@ROUTES.delete("/numbers", answer=Answer, summary="Delete a number.")
async def delete(_call: Call, _body: Body) -> Encoded:
    return Encoded(b"{}")


def test_a_route_is_what_its_handler_says() -> None:
    first, second, _ = ROUTES
    assert (first.method, first.paths, first.summary) == (
        "POST",
        ("/twice", "/double"),
        "Return twice a number. It may be negative.",
    )
    assert (first.request, first.response) == (Body, Answer)
    assert (second.method, second.request, second.response) == ("GET", None, list[int])
    assert first.handler is twice


def test_facts_of_the_table_are_those_of_routes_that_say_nothing_else() -> None:
    first, second, third = ROUTES
    assert [route.scope for route in ROUTES] == [Scope.MANAGE, Scope.USE, Scope.MANAGE]
    assert [route.uses_model for route in (first, second)] == [False, False]
    assert (third.request, third.response, third.summary) == (Body, Answer, "Delete a number.")
