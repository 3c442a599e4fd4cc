"""Routes that are declared at their handlers: the annotations of a handler say which body it takes and what it answers.

A handler takes the `Call` and, if it has a second parameter, the checked body. It returns an object, which is sent as
JSON, or another answer of `core/answers.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from inspect import Parameter, signature
from typing import Any, TypedDict, TypeVar, Unpack, get_args, get_origin

from aiohttp import hdrs

from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.answers import Long
from rnn_engine_server.core.errors import ErrorForm
from rnn_engine_server.core.routing import Kind, Route
from rnn_engine_server.core.schema import RequestBody

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Awaitable[object]])


class Facts(TypedDict, total=False):
    """What a route says beside its path. The attributes of `Route` have the meanings."""

    summary: str  # in place of the handler's docstring
    answer: Kind | None  # the type of the answer, if the handler returns an encoded one or a stream
    keeps_text: bool
    form: type[RequestBody]
    chunk: Kind
    content_type: str
    stream_type: str
    also_answers: Mapping[int, Kind]
    query: Mapping[str, str]
    scope: Scope
    routine: bool
    always: bool
    is_page: bool
    changes_by_get: bool
    uses_model: bool
    error_form: ErrorForm


class RouteTable:
    """The routes of one module, in the order of their handlers.

    Its methods are decorators of handlers. They take the paths, the main one first, and what differs from the `facts`
    that all routes of the table share. The docstring of a handler is its route's summary in the documentation.
    """

    def __init__(self, **facts: Unpack[Facts]) -> None:
        self._shared = facts
        self._routes: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def get(self, path: str, *also: str, **facts: Unpack[Facts]) -> Callable[[Function], Function]:
        return self.add(hdrs.METH_GET, path, *also, **facts)

    def post(self, path: str, *also: str, **facts: Unpack[Facts]) -> Callable[[Function], Function]:
        return self.add(hdrs.METH_POST, path, *also, **facts)

    def put(self, path: str, *also: str, **facts: Unpack[Facts]) -> Callable[[Function], Function]:
        return self.add(hdrs.METH_PUT, path, *also, **facts)

    def delete(self, path: str, *also: str, **facts: Unpack[Facts]) -> Callable[[Function], Function]:
        return self.add(hdrs.METH_DELETE, path, *also, **facts)

    def add(self, method: str, path: str, *also: str, **facts: Unpack[Facts]) -> Callable[[Function], Function]:
        """Return a decorator that adds a handler's route for `method` and leaves the handler as it is."""

        def decorate(handler: Function) -> Function:
            self._routes.append(_make_route(method, path, also, handler, {**self._shared, **facts}))
            return handler

        return decorate


def _make_route(
    method: str, path: str, also: tuple[str, ...], handler: Callable[..., Awaitable[object]], facts: Mapping[str, Any]
) -> Route:
    of_handler = signature(handler, eval_str=True)
    parameters: list[Parameter] = list(of_handler.parameters.values())
    body = parameters[1].annotation if len(parameters) > 1 else None
    kind = of_handler.return_annotation
    answer = get_args(kind)[0] if get_origin(kind) is Long else kind
    found = {"answer": answer, "summary": " ".join((handler.__doc__ or "").split()), **facts}
    return Route(method, path, handler, also=also, request=body, response=found.pop("answer"), **found)
