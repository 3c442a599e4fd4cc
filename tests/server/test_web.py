"""The serving of the web page's files."""

from __future__ import annotations

import gzip

import pytest

from rnn_engine_server.auth.keys import ApiKey
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from rnn_engine_server.web import web_files
from tests.support.fake_engine import FakeEngine
from tests.support.http import Serve

AS_IT_IS = {"Accept-Encoding": "identity"}


async def test_the_page_is_at_the_root_and_needs_no_key(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(auth=AuthSettings((ApiKey.of("key"),))))
    response = await client.get("/")
    assert (response.status, response.content_type) == (200, "text/html")
    assert await response.text() == web_files()["index.html"].read_text()
    policy = response.headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("name", "content_type"),
    [("main.js", "text/javascript"), ("style/base.css", "text/css"), ("icon.svg", "image/svg+xml")],
)
async def test_a_file_comes_whole_or_not_at_all(serve: Serve, name: str, content_type: str) -> None:
    client = await serve(FakeEngine())
    path, content = f"/web/{name}", web_files()[name].read_bytes()
    plain = await client.get(path, headers=AS_IT_IS)
    assert (plain.status, plain.content_type, await plain.read()) == (200, content_type, content)
    assert plain.headers["Cache-Control"] == "no-cache"
    again = await client.get(path, headers={**AS_IT_IS, "If-None-Match": plain.headers["ETag"]})
    assert (again.status, await again.read()) == (304, b"")
    other = await client.get(path, headers={**AS_IT_IS, "If-None-Match": '"other"'})
    assert other.status == 200
    head = await client.head(path)
    assert (head.status, await head.read()) == (200, b"")


async def test_it_is_compressed_for_those_who_take_that(serve: Serve) -> None:
    client = await serve(FakeEngine())
    async with client.request(
        "GET", "/web/main.js", headers={"Accept-Encoding": "gzip"}, auto_decompress=False
    ) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.headers["Vary"] == "Accept-Encoding"
        assert gzip.decompress(await answer.read()) == web_files()["main.js"].read_bytes()


@pytest.mark.parametrize(
    "path", ["/web/nothing.js", "/web/__init__.py", "/web/../app.py", "/web/%2e%2e/app.py", "/web//etc/passwd", "/web/"]
)
async def test_nothing_else_is_served(serve: Serve, path: str) -> None:
    response = await (await serve(FakeEngine())).get(path)
    assert response.status == 404


async def test_without_the_web_page_the_root_shows_the_routes(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(web=False))
    assert await (await client.get("/")).text() == await (await client.get("/docs")).text()
    assert (await client.get("/web/main.js")).status == 404
