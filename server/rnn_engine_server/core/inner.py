"""Calls of the server's own routes from within the process: through their handlers, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpRequestParser
from aiohttp.typedefs import Handler, Middleware

from rnn_engine.requests import Client
from rnn_engine_server.auth.admission import CLIENT, PRINCIPAL
from rnn_engine_server.auth.keys import Principal
from rnn_engine_server.core.bodies import to_json
from rnn_engine_server.core.errors import describe
from rnn_engine_server.core.routing import JSON, ROUTES, Route

_HEAD_BYTES = 1 << 12  # of a request's head
_AGAIN = (429, 503)  # statuses of answers after which a request may be sent again
_RETRY_SECONDS = 5.0  # after which it is sent again if the answer does not say

Prepare: TypeAlias = Callable[[web.Request], None]
Take: TypeAlias = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class InnerAnswer:
    """The whole answer to a call."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def retry_seconds(self) -> float | None:
        """After how many seconds the request may be sent again; None unless it was refused as too early."""
        return float(self.headers.get("Retry-After", _RETRY_SECONDS)) if self.status in _AGAIN else None


class InnerCalls:
    """Sends requests to an application's routes as a client would, for work that outlives its own request."""

    def __init__(self, app: web.Application, middlewares: Sequence[Middleware]) -> None:
        """Call routes of `app` through `middlewares`, of which the first is the outermost.

        Those that check connections and keys don't belong here: the caller says for whom it calls.
        """
        self._app = app
        self._middlewares = middlewares
        self._protocol: web.RequestHandler | None = None

    def route(self, path: str) -> Route | None:
        """Return the route that answers a POST to `path`, or None."""
        return next((each for each in self._app[ROUTES].values() if (each.method, each.path) == ("POST", path)), None)

    async def post(
        self,
        path: str,
        body: bytes,
        principal: Principal,
        client: Client,
        request_id: str,
        *,
        prepare: Prepare | None = None,
        take: Take | None = None,
    ) -> InnerAnswer:
        """Send a JSON body to the route at `path`, and return its whole answer, which may be an error's.

        The request has the rights of `principal`, and counts as one of `client`. The log has it under `request_id`.
        `prepare` is called with the request before its handler. `take` is called with each piece of a stream, which is
        then not in the answer.
        """
        collector = _Collector(take)
        request = self._request(path, body, request_id, collector)
        match = await self._app.router.resolve(request)
        match.add_app(self._app)
        match.freeze()
        request._match_info = match  # as aiohttp does for a request that has come over a connection
        request[PRINCIPAL], request[CLIENT] = principal, client
        if prepare is not None:
            prepare(request)
        handler: Handler = match.handler
        for middleware in reversed(self._middlewares):
            handler = partial(middleware, handler=handler)
        try:
            response = await handler(request)
        except ConnectionError as error:  # an answer that had begun has failed
            return InnerAnswer(500, {}, to_json(describe(error).body))
        if isinstance(response, web.Response) and not response.prepared:
            assert isinstance(response.body, bytes | bytearray)
            return InnerAnswer(response.status, response.headers, bytes(response.body))
        return InnerAnswer(response.status, response.headers, bytes(collector.body))

    def _request(self, path: str, body: bytes, request_id: str, writer: AbstractStreamWriter) -> web.Request:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        if self._protocol is None:  # one that is never connected; all calls share it
            self._protocol = web.Server(_refuse)()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {request_id}\r\n"
        head += f"Content-Type: {JSON}\r\nContent-Length: {len(body)}\r\n\r\n"
        [(message, _)], _, _ = HttpRequestParser(self._protocol, loop, _HEAD_BYTES).feed_data(head.encode())
        payload = StreamReader(self._protocol, len(body) + 1, loop=loop)
        payload.feed_data(body)
        payload.feed_eof()
        return web.Request(message, payload, self._protocol, writer, task, loop)


class _Collector(AbstractStreamWriter):
    """Collects the body of an answer that a handler writes piece by piece, or passes on the pieces."""

    def __init__(self, take: Take | None) -> None:
        self.body = bytearray()
        self._take = self.body.extend if take is None else take

    async def write(self, chunk: bytes | bytearray | memoryview, *_: Any) -> None:  # noqa: ANN401
        self._take(bytes(chunk))

    async def write_eof(self, chunk: bytes = b"") -> None:
        if chunk:
            self._take(chunk)

    def enable_compression(self, *_: Any) -> None:  # noqa: ANN401
        """Do nothing: the body is not sent over a connection."""

    def enable_chunking(self) -> None:
        """Do nothing, too."""

    async def write_headers(self, *_: Any) -> None:  # noqa: ANN401
        """Do nothing: the response has the headers."""

    drain = write_headers


async def _refuse(_request: web.BaseRequest) -> web.StreamResponse:
    raise web.HTTPNotFound
