"""A proxy that serves a server under a path, as nginx does with `location /llm/`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import ClientSession, hdrs, web
from aiohttp.test_utils import TestServer
from yarl import URL

_OF_ONE_CONNECTION = (hdrs.HOST, hdrs.CONNECTION, hdrs.TRANSFER_ENCODING)


@asynccontextmanager
async def prefix_proxy(target: str, prefix: str, *, strips: bool) -> AsyncIterator[str]:
    """Yield the URL under which the server `target` is reached. With `strips`, the server gets paths without `prefix`.

    As from nginx without further settings, the server gets its own address as Host.
    """
    async with ClientSession(auto_decompress=False) as session:

        async def pass_on(request: web.Request) -> web.StreamResponse:
            path = request.rel_url.raw_path_qs
            if not path.startswith(f"{prefix}/"):
                raise web.HTTPNotFound
            url = URL(target + (path.removeprefix(prefix) if strips else path), encoded=True)
            headers = [(name, value) for name, value in request.headers.items() if name not in _OF_ONE_CONNECTION]
            body = await request.read()
            async with session.request(
                request.method, url, headers=headers, data=body, allow_redirects=False
            ) as answer:
                kept = [(name, value) for name, value in answer.headers.items() if name not in _OF_ONE_CONNECTION]
                response = web.StreamResponse(status=answer.status, headers=dict(kept))
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                return response

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", pass_on)
        async with TestServer(app) as server:
            yield f"{server.make_url(prefix)}/"
