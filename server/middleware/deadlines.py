"""End requests that take too long."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rnn_engine.errors import TimeLimitError

_SPARE_SECONDS = 30.0  # for the answer of a generation that the engine has ended in time


def deadlines_middleware(seconds: float) -> Middleware:
    """Return middleware that ends a request that has not ended by itself some time after `seconds`.

    An answer that has begun is cut off, with its connection; any other becomes TimeLimitError.
    """

    @web.middleware
    async def limit(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            async with asyncio.timeout(seconds + _SPARE_SECONDS):
                return await handler(request)
        except TimeoutError as error:
            if request.writer.output_size > 0:
                raise ConnectionAbortedError("the answer took too long") from error
            raise TimeLimitError(f"the request took longer than {seconds:g} s") from error

    return limit
