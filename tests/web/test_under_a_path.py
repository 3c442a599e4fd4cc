"""The web page behind a proxy that serves it under a path of another server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urljoin

import pytest
import pytest_asyncio
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from playwright.async_api import Page, expect

from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from rnn_engine.loading.settings import LoadSettings
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import ServerSettings
from tests.support.browser import Guard, Visit
from tests.support.prefix_proxy import prefix_proxy


@pytest_asyncio.fixture(params=["the proxy strips the path", "the proxy passes the path on"], loop_scope="session")
async def url(request: pytest.FixtureRequest, guard: Guard) -> AsyncIterator[str]:
    strips = request.param == "the proxy strips the path"
    engine = await Engine.load(model_path(), LoadSettings("cpu"), num_slots=1)
    settings = ServerSettings() if strips else ServerSettings(root_path="/a/llm")
    async with (
        TestServer(make_app(engine, settings)) as server,
        prefix_proxy(str(server.make_url("")).rstrip("/"), "/a/llm", strips=strips) as url,
    ):
        guard.add_host(url)
        yield url
        await guard.close_pages()


async def test_all_pages_and_a_chat(url: str, visit: Visit) -> None:
    page = await visit(url)
    await expect(page.get_by_text("Connected")).to_be_visible()
    await page.get_by_role("textbox", name="Message").fill("What is 2 + 3?")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("article", name="Model")).to_contain_text("5")
    links = page.get_by_role("navigation", name="Pages").get_by_role("link")
    await expect(links.nth(5)).to_be_visible()
    for number in range(await links.count()):
        await links.nth(number).click()
        await expect(links.nth(number)).to_have_attribute("aria-current", "page")
        await expect(page.locator("main > *").first).to_be_visible()
        await expect(page.locator(".page-failed")).to_have_count(0)
    await expect_loaded(page)


async def expect_loaded(page: Page) -> None:
    """Check that all files of the page have come."""
    failed = (
        "performance.getEntriesByType('resource').filter((each) => each.responseStatus >= 400).map(({name}) => name)"
    )
    assert await page.evaluate(failed) == []


@pytest.mark.parametrize("path", ["docs", "docs/", "api-docs"])
async def test_the_reference_of_the_routes(url: str, visit: Visit, path: str) -> None:
    page = await visit(url + path)
    await page.get_by_role("link", name="POST /v1/chat/completions", exact=True).click()
    await expect(page.locator("pre").first).to_contain_text(f"curl -X POST '{url}v1/chat/completions'")
    await expect_loaded(page)


async def test_the_document_names_the_address(url: str) -> None:
    async with ClientSession() as session:
        for path in ("openapi.json", "api-docs/openapi.json"):
            async with session.get(url + path) as response:
                [server] = (await response.json())["servers"]
            assert urljoin(url + path, server["url"]) == url
