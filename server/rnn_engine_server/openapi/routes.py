"""Routes for the OpenAPI document and for the page to browse it."""

from __future__ import annotations

import asyncio
from functools import cache
from importlib.resources import files

from aiohttp import web

from rnn_engine_server.core.bodies import encoded_response
from rnn_engine_server.core.handlers import RouteTable
from rnn_engine_server.core.routing import HTML, path_of
from rnn_engine_server.openapi.document import API_DOCUMENT, ApiDocument

_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}


_page = cache(files("rnn_engine_server.openapi").joinpath("page.html").read_bytes)

ROUTES = RouteTable(uses_model=False)


@ROUTES.get("/openapi.json", "/api-docs/openapi.json", answer=ApiDocument, always=True, is_page=True)
async def document(request: web.Request) -> web.Response:
    """All routes and bodies, as an OpenAPI 3.1 document."""
    server = "." if path_of(request).count("/") == 1 else ".."
    return encoded_response(await asyncio.to_thread(request.app[API_DOCUMENT], server))


@ROUTES.get("/docs", "/api-docs", answer=None, content_type=HTML, always=True, is_page=True)
async def page(_request: web.Request) -> web.Response:
    """A page to browse the routes, which loads nothing from other servers."""
    body = await asyncio.to_thread(_page)
    return web.Response(body=body, content_type=HTML, charset="utf-8", headers=_PAGE_HEADERS)
