"""A page of another site, in a browser: it can open the web page, and can't change what the server does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from playwright.async_api import Browser, Page, expect

from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import ServerSettings
from rnn_engine_server.models.registry import MODELS
from tests.support.fake_engine import FakeEngine

UNLOAD = "/admin/models/unload"
PAGES = {
    "location": "<script>location.href = '{target}'</script>",
    "refresh": "<meta http-equiv=refresh content='0; url={target}'>",
    "hidden referrer": "<meta name=referrer content=no-referrer><script>location.href = '{target}'</script>",
    "form": "<form action='{target}'></form><script>document.forms[0].submit()</script>",
    "posted form": (
        "<form method=post enctype='text/plain' action='{target}'><input name='{{\"a\": \"' value='\"}}'></form>"
        "<script>document.forms[0].submit()</script>"
    ),
    "image": "<img src='{target}'>",
    "script": "<script src='{target}'></script>",
    "style": "<link rel=stylesheet href='{target}'>",
    "frame": "<iframe src='{target}'></iframe>",
    "fetch": "<script>fetch('{target}', {{mode: 'no-cors'}}).catch(() => 0)</script>",
    "head": "<script>fetch('{target}', {{mode: 'no-cors', method: 'HEAD'}}).catch(() => 0)</script>",
    "beacon": "<script>navigator.sendBeacon('{target}')</script>",
}
"""What a page of another site does without a click."""


@dataclass(frozen=True, slots=True)
class Sites:
    """A server without API keys, and another site with pages that go to `target`."""

    app: web.Application
    root: str  # of the server
    other_port: int
    statuses: asyncio.Queue[int]  # of the answers at UNLOAD

    @property
    def status(self) -> str:
        return self.app[MODELS].default.status


@pytest_asyncio.fixture(loop_scope="session")
async def sites() -> AsyncIterator[Sites]:
    async def show(request: web.Request) -> web.Response:
        text = PAGES[request.match_info["kind"]].format(target=request.query["target"])
        return web.Response(text=f"<!doctype html><title>Other</title>{text}", content_type="text/html")

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound(request.query["target"])

    async def note(request: web.Request, response: web.StreamResponse) -> None:
        if request.path == UNLOAD:
            statuses.put_nowait(response.status)

    statuses: asyncio.Queue[int] = asyncio.Queue()
    app, other = make_app(FakeEngine(), ServerSettings()), web.Application()
    app.on_response_prepare.append(note)
    other.router.add_get("/show/{kind}", show)
    other.router.add_get("/redirect", redirect)
    async with TestServer(app) as server, TestServer(other) as other_server:
        yield Sites(app, f"http://127.0.0.1:{server.port}", other_server.port or 0, statuses)


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    context = await browser.new_context()
    yield await context.new_page()
    await context.close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("kind", PAGES)
async def test_no_page_of_another_site_unloads_a_model(sites: Sites, page: Page, kind: str, host: str) -> None:
    await page.goto(f"http://{host}:{sites.other_port}/show/{kind}?target={sites.root}{UNLOAD}", wait_until="commit")
    assert await sites.statuses.get() in (403, 405)
    assert sites.status == "loaded"


async def test_no_redirect_unloads_a_model(sites: Sites, page: Page) -> None:
    """A browser reports no page for an address that a person typed, even after a redirect."""
    await page.goto(f"http://localhost:{sites.other_port}/redirect?target={sites.root}{UNLOAD}")
    assert await sites.statuses.get() == 403
    assert sites.status == "loaded"


async def test_a_link_on_another_site_opens_the_web_page(sites: Sites, page: Page) -> None:
    await page.goto(f"http://localhost:{sites.other_port}/show/location?target={sites.root}/", wait_until="commit")
    await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
