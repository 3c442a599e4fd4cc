"""Routes for the OpenAPI document and for the page to browse it."""

from __future__ import annotations

import asyncio
from functools import cache
from importlib.resources import files

from aiohttp import web

from rnn_engine_server.core.routing import API_DOCUMENT, HTML, Route
from rnn_engine_server.openapi.document import ApiDocument

_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}


async def document(request: web.Request) -> web.Response:
    text = await asyncio.to_thread(request.app[API_DOCUMENT].text)
    return web.Response(text=text, content_type="application/json")


async def page(_request: web.Request) -> web.Response:
    return web.Response(text=await asyncio.to_thread(_page), content_type=HTML, headers=_PAGE_HEADERS)


@cache
def _page() -> str:
    return files("rnn_engine_server.openapi").joinpath("page.html").read_text(encoding="utf-8")


ROUTES = (
    Route(
        "GET",
        "/openapi.json",
        document,
        "All routes and bodies, as an OpenAPI 3.1 document.",
        ApiDocument,
        always=True,
        is_page=True,
        uses_model=False,
        also=("/api-docs/openapi.json",),
    ),
    Route(
        "GET",
        "/docs",
        page,
        "A page to browse the routes, which loads nothing from other servers.",
        None,
        content_type=HTML,
        always=True,
        is_page=True,
        uses_model=False,
        also=("/api-docs",),
    ),
)
