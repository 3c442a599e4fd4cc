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

from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import RefusalError
from rnn_engine_server.core.handlers import Encoded, RouteTable
from rnn_engine_server.core.routing import HTML, REST, SETTINGS
from rnn_engine_server.openapi.document import page as api_page

FOLDER = Path(__file__).parent

CONTENT_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
"""The content types of the files that a browser may request, by suffix."""


@cache
def web_files() -> dict[str, Path]:
    """Return the files of the web page that the server sends, by path below `/web/`."""
    found = (path for path in FOLDER.rglob("*") if path.suffix in CONTENT_TYPES)
    return {path.relative_to(FOLDER).as_posix(): path for path in found}


_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",  # the browser keeps it, and asks before each use if it has changed
    "Vary": "Accept-Encoding",
}


ROUTES = RouteTable(answer=None, always=True, uses_model=False)


@ROUTES.get("/", content_type=HTML, is_page=True)
async def index(call: Call) -> Encoded:
    """The web page; with --no-web, the page to browse the routes."""
    path = call.request.path
    if not path.endswith("/"):  # it is the root path, and the page's addresses are relative to what is in it
        return Encoded(b"", status=308, headers={"Location": f"{path.rpartition('/')[2]}/"})
    if not call.app[SETTINGS].web:
        return await api_page(call)
    return await _answer(call, "index.html")


@ROUTES.get(f"/web/{{path:{REST}}}", content_type="text/javascript")
async def file(call: Call) -> Encoded:
    """A file of the web page."""
    if not call.app[SETTINGS].web:
        raise RefusalError(404, "this server has no web page; it was started with --no-web")
    return await _answer(call, call.parameters["path"])


async def _answer(call: Call, name: str) -> Encoded:
    path = web_files().get(name)
    if path is None:
        raise RefusalError(404, f"the web page has no file {name[:80]!r}")
    found = await asyncio.to_thread(_read, path, path.stat().st_mtime_ns)
    content, headers = found.content, {**_HEADERS, "ETag": f'W/"{found.digest}"'}
    if any(tag.value in (found.digest, "*") for tag in call.request.if_none_match or ()):
        return Encoded(b"", found.content_type, 304, headers)
    if "gzip" in call.request.headers.get("Accept-Encoding", ""):
        content, headers = found.compressed, {**headers, "Content-Encoding": "gzip"}
    return Encoded(content, f"{found.content_type}; charset=utf-8", headers=headers)


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
