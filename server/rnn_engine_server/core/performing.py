"""Perform calls: those that come over connections, and those that the server makes itself."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from rnn_engine.errors import TimeLimitError
from rnn_engine.requests import Client
from rnn_engine_server.auth.admission import PRINCIPAL, client_of
from rnn_engine_server.auth.engine import OwnEngine
from rnn_engine_server.auth.keys import ANYONE, Principal
from rnn_engine_server.core.bodies import Parse, accept_body, left_out_headers, read_body, to_json
from rnn_engine_server.core.call import BUDGET, RECORD, Call
from rnn_engine_server.core.errors import Failure, describe
from rnn_engine_server.core.handlers import (
    Encoded,
    Event,
    Long,
    Piece,
    Stream,
    deliver,
    encode,
    encode_piece,
    send_stream,
)
from rnn_engine_server.core.routing import AI00_PREFIX, ROUTES, SETTINGS, Route, path_of, route_of
from rnn_engine_server.core.schema import RequestBody
from rnn_engine_server.models.registry import MODELS, ModelUse
from rnn_engine_server.telemetry.records import REQUEST_ID, RequestRecord, recorded, timing_headers

_SPARE_SECONDS = 30.0  # for the answer of a generation that the engine has ended in time


@asynccontextmanager
async def _admitted(call: Call) -> AsyncIterator[None]:
    """Give a call its memory, its model and its time during a `with` block. Raises TimeLimitError after its time.

    A route with a body chooses the model when the body is accepted.
    """
    route, seconds = call.route, call.limits.max_request_seconds
    try:
        async with asyncio.timeout(seconds + _SPARE_SECONDS):
            with call.ending as ending:
                call.lease = ending.enter_context(call.app[BUDGET].lease())
                if route.uses_model and not route.always:
                    use = call.use = _use_of(call)
                    ending.callback(use.release)
                    if route.request is None:
                        await use.choose(call.query.get("model"))
                yield
    except TimeoutError as error:
        raise TimeLimitError(f"the request took longer than {seconds:g} s") from error
    finally:
        call.use = call.http = None  # both have the call, and a collection of cycles stops all threads


def _use_of(call: Call) -> ModelUse:
    """Return a call's use of a model, which is not chosen yet.

    Programs often have a model's name built in, so a server with one model accepts any name, unless the settings say
    otherwise. Under ai00's paths any name is accepted, as by ai00.
    """
    models, settings = call.app[MODELS], call.app[SETTINGS]
    any_name = call.path.startswith(AI00_PREFIX) or settings.any_model
    if any_name is None:
        any_name = not settings.strict and len(models) == 1
    restrict = partial(OwnEngine, call)
    return ModelUse(models, restrict, wait_seconds=settings.limits.max_load_seconds, any_name=any_name)


# Calls that come over connections.

_CALL = web.RequestKey("call", Call)
_ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_REQUEST_ID = "request-id"  # the header that Anthropic's clients read


@web.middleware
async def telemetry_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Count a request, time it, and log it when it has ended. Stands before all other middleware."""
    given = request.headers.get(REQUEST_ID, "")
    record = request[RECORD] = RequestRecord.of(request.method, route_of(request), given, request.remote)
    with recorded(request.app, record):
        try:
            response = await handler(request)
        except ConnectionError as error:
            record.is_cut_off = isinstance(error.__cause__, TimeLimitError)
            raise
        record.status = response.status
        return response


async def respond(route: Route, request: web.Request) -> web.StreamResponse:
    """Answer a request for a route. Raises ConnectionAbortedError if the answer has begun and takes too long."""
    call = request[_CALL] = Call(
        request.app,
        route,
        request.get(PRINCIPAL, ANYONE),
        client_of(request),
        request[RECORD],
        path_of(request),
        request.match_info,
        request.query,
        http=request,
    )
    try:
        async with _admitted(call):
            body = () if route.request is None else (await read_body(call, route.request),)
            return await _send(call, await route.handler(call, *body))
    except TimeLimitError as error:
        if request.writer.output_size > 0:
            raise ConnectionAbortedError("the answer took too long") from error
        raise


async def _send(call: Call, answer: object) -> web.StreamResponse:
    if isinstance(answer, Stream):
        return await send_stream(call, answer)
    if not isinstance(answer, Encoded):
        answer = Encoded((await encode(call, answer))[0])
    headers = {hdrs.CONTENT_TYPE: answer.content_type, **answer.headers}
    return web.Response(body=answer.body, status=answer.status, headers=headers)


async def set_call_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add to an answer's headers the request's id, its times if it is no stream, what was ignored, and the quota left.

    A handler of aiohttp's signal `on_response_prepare`.
    """
    if (record := request.get(RECORD)) is not None:
        response.headers[REQUEST_ID] = record.id
        if path_of(request).startswith(_ANTHROPIC_PATH):
            response.headers[_ANTHROPIC_REQUEST_ID] = record.id
        if isinstance(response, web.Response):
            response.headers.update(timing_headers(record))
    if (call := request.get(_CALL)) is not None:
        response.headers.update(left_out_headers(call))
        if call.spending is not None:
            response.headers.update(call.spending.headers)


# Calls that the server makes itself, for work that outlives its own request.

_AGAIN = (429, 503)  # statuses of answers after which a call may be made again
_RETRY_SECONDS = 5.0  # after which it is made again if the answer does not say


@dataclass(frozen=True, slots=True)
class InnerAnswer:
    """The whole answer to a call."""

    status: int
    body: bytes
    usage: Mapping[str, Any] | None = None  # that the answer tells
    failure: Failure | None = None  # that it reports; with the status 200, that of a stream which had begun

    @property
    def retry_seconds(self) -> float | None:
        """After how many seconds the call may be made again; None unless it was refused as too early."""
        if self.failure is None or self.status not in _AGAIN:
            return None
        return float(self.failure.headers.get("Retry-After", _RETRY_SECONDS))


class InnerCalls:
    """Makes calls of an application's routes, with the rights and the rates of the `Principal` that each call gets."""

    def __init__(self, app: web.Application) -> None:
        self._app = app

    def route(self, path: str) -> Route:
        """Return the route that answers a POST to `path`, which must exist."""
        return next(each for each in self._app[ROUTES].values() if (each.method, each.path) == (hdrs.METH_POST, path))

    async def ask(
        self,
        route: Route,
        parse: Parse[RequestBody],
        num_parsed: int,
        principal: Principal,
        client: Client,
        request_id: str,
        *,
        deadline: float = math.inf,
        origin: object = None,
        take: Callable[[Iterable[Event]], None] | None = None,
    ) -> InnerAnswer:
        """Call a route with the body that `parse` returns, and return the whole answer, which may be an error's.

        The body takes `num_parsed` bytes. The call has the rights of `principal`, and counts as one of `client`. The
        log has it under `request_id`. `take` is called with the events of a stream, which are then not in the answer.
        See `Call` for `deadline` and `origin`.
        """
        record = RequestRecord.of(hdrs.METH_POST, route, request_id)
        record.key = principal.name or None
        call = Call(self._app, route, principal, client, record, route.path, deadline=deadline, origin=origin)
        with recorded(self._app, record):
            try:
                async with _admitted(call):
                    body = await accept_body(call, parse, num_parsed, num_parsed)
                    answer = await _collect(call, await route.handler(call, body), take)
            except Exception as error:
                failure = describe(error)
                status, told = route.error_form(failure)
                answer = InnerAnswer(status, to_json(told), failure=failure)
            record.status = answer.status
        return answer


async def _collect(call: Call, answer: object, take: Callable[[Iterable[Event]], None] | None) -> InnerAnswer:
    if isinstance(answer, Stream):
        collected, has_begun, form = bytearray(), False, answer.form

        async def write(piece: Piece) -> None:
            nonlocal has_begun
            has_begun = True
            if take is None or isinstance(piece, bytes | memoryview):
                collected.extend(await encode_piece(call, form, piece))
            else:
                take(await piece.made(call, list) if isinstance(piece, Long) else piece)

        async def is_late() -> bool:
            return has_begun

        failure = await deliver(call, answer, write, is_late)
        return InnerAnswer(200, bytes(collected), failure=failure)
    if isinstance(answer, Encoded):
        return InnerAnswer(answer.status, answer.body)
    body, made = await encode(call, answer)
    return InnerAnswer(200, body, made.get("usage") if isinstance(made, Mapping) else None)
