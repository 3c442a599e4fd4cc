"""The web page: static files that the server sends and the browser runs without a build step.

README.md describes their layout and how to add a page.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from aiohttp import ETag, hdrs, web

from rnn_engine_server.core.handlers import RouteTable
from rnn_engine_server.core.routing import HTML, REST, SETTINGS
from rnn_engine_server.openapi.routes import page as api_page

FOLDER = Path(__file__).parent

CONTENT_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
"""The content types of the files that a browser may request, by suffix."""


@cache
def web_files() -> dict[str, Path]:
    """Return the files of the web page that the server sends, by path below `/web/`."""
    found = (path for path in FOLDER.rglob("*") if path.suffix in CONTENT_TYPES)
    return {path.relative_to(FOLDER).as_posix(): path for path in found}


_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    hdrs.CACHE_CONTROL: "no-cache",  # the browser keeps it, and asks before each use if it has changed
    hdrs.VARY: hdrs.ACCEPT_ENCODING,
}


ROUTES = RouteTable(answer=None, always=True, uses_model=False)


@ROUTES.get("/", content_type=HTML, is_page=True)
async def index(request: web.Request) -> web.StreamResponse:
    """The web page; with --no-web, the page to browse the routes."""
    if not request.path.endswith("/"):  # it is the root path, and the page's addresses are relative to what is in it
        return web.Response(status=308, headers={hdrs.LOCATION: f"{request.path.rpartition('/')[2]}/"})
    if not request.app[SETTINGS].web:
        return await api_page(request)
    return await _answer(request, "index.html")


@ROUTES.get(f"/web/{{path:{REST}}}", content_type="text/javascript")
async def file(request: web.Request) -> web.StreamResponse:
    """A file of the web page."""
    if not request.app[SETTINGS].web:
        raise web.HTTPNotFound(text="this server has no web page; it was started with --no-web")
    return await _answer(request, request.match_info["path"])


async def _answer(request: web.Request, name: str) -> web.Response:
    path = web_files().get(name)
    if path is None:
        raise web.HTTPNotFound(text=f"the web page has no file {name[:80]!r}")
    found = await asyncio.to_thread(_read, path, path.stat().st_mtime_ns)
    known = request.if_none_match or ()
    if any(tag.value in (found.digest, "*") for tag in known):
        response = web.Response(status=304, headers=_HEADERS)
    elif "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
        headers = {**_HEADERS, hdrs.CONTENT_ENCODING: "gzip"}
        response = web.Response(
            body=found.compressed, content_type=found.content_type, charset="utf-8", headers=headers
        )
    else:
        response = web.Response(body=found.content, content_type=found.content_type, charset="utf-8", headers=_HEADERS)
    response.etag = ETag(found.digest, is_weak=True)
    return response


@dataclass(frozen=True, slots=True)
class _WebFile:
    content: bytes
    compressed: bytes
    digest: str
    content_type: str


@lru_cache(maxsize=512)
def _read(path: Path, _changed_ns: int) -> _WebFile:
    """Read a file of the web page, and compress it for browsers that accept gzip.

    Results are cached until `_changed_ns`, the time of the file's last change, differs.
    """
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:32]
    return _WebFile(content, gzip.compress(content, mtime=0), digest, CONTENT_TYPES[path.suffix])
