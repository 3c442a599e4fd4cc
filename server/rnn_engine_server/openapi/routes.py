"""Routes for the OpenAPI document and for the page to browse it."""

from __future__ import annotations

import asyncio
from functools import cache
from importlib.resources import files

from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import Encoded, RouteTable
from rnn_engine_server.core.routing import HTML
from rnn_engine_server.openapi.document import API_DOCUMENT, ApiDocument

HTML_TEXT = f"{HTML}; charset=utf-8"
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}


_page = cache(files("rnn_engine_server.openapi").joinpath("page.html").read_bytes)

ROUTES = RouteTable(uses_model=False)


@ROUTES.get("/openapi.json", "/api-docs/openapi.json", answer=ApiDocument, always=True, is_page=True)
async def document(call: Call) -> Encoded:
    """All routes and bodies, as an OpenAPI 3.1 document."""
    server = "." if call.path.count("/") == 1 else ".."
    return Encoded(await asyncio.to_thread(call.app[API_DOCUMENT], server))


@ROUTES.get("/docs", "/api-docs", answer=None, content_type=HTML, always=True, is_page=True)
async def page(_call: Call) -> Encoded:
    """A page to browse the routes, which loads nothing from other servers."""
    body = await asyncio.to_thread(_page)
    return Encoded(body, HTML_TEXT, headers=_PAGE_HEADERS)
