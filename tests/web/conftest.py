"""A browser and a server over the demo model, both for the whole session, and pages that must not have errors.

Browser and server run in the session's event loop, so tests that use them are asynchronous functions.
"""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestServer
from playwright.async_api import Browser, Page, ViewportSize, async_playwright, expect

from rnn_engine.cli.session import load_engine
from rnn_engine.demo import model_path, pirate_state_path
from rnn_engine.engine import Engine
from rnn_engine.loading.settings import LoadSettings, StateFile, StateSettings
from rnn_engine_server.auth.keys import ApiKey
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from rnn_engine_server.models.orders import LoadOrder
from rnn_engine_server.models.registry import ModelRegistry
from tests.support.browser import DESKTOP, ColorScheme, Guard, Visit
from tests.support.demo_server import demo_choice

FOLDER = Path(__file__).parent
TIMEOUT_MS = 60_000  # the machine may be busy with other work
expect.set_options(timeout=TIMEOUT_MS)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents and inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def chromium_path() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)
    if found is not None:
        return found
    message = "the web page is tested in Chromium, which is not there; `make test` says what to install"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium_path: str) -> AsyncIterator[Browser]:
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium_path, args=options)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def web_server() -> AsyncIterator[str]:
    """Yield the root URL of a server with the demo model and its state `pirate`, as from `rnn-engine serve`."""
    states = StateSettings(files=[StateFile(pirate_state_path(), "pirate")])
    choice = demo_choice(slots=8, states=states)
    order = LoadOrder("demo", choice.model)
    models = await ModelRegistry.load([order], "demo", lambda _: partial(load_engine, choice))
    async with TestServer(make_app(models, ServerSettings(loading=choice.loading))) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.fixture
def guard(web_server: str) -> Guard:
    return Guard(web_server)


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: Browser, web_server: str, guard: Guard) -> AsyncIterator[Visit]:
    """Yield a function that opens pages. The test fails if a page has an error."""

    async def open_page(
        path: str = "/", *, viewport: ViewportSize = DESKTOP, color_scheme: ColorScheme = "light", locale: str = "en-GB"
    ) -> Page:
        context = await browser.new_context(viewport=viewport, color_scheme=color_scheme, locale=locale)
        page = await context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        guard.watch(page)
        await page.goto(path if path.startswith("http") else web_server + path)
        return page

    yield open_page
    await guard.close_pages()
    guard.check()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def keyed_server() -> AsyncIterator[str]:
    """Yield the root URL of a server that asks for the API key `secret`."""
    engine = await Engine.load(model_path(), LoadSettings("cpu"), num_slots=1)
    settings = ServerSettings(auth=AuthSettings((ApiKey.of("secret"),)))
    async with TestServer(make_app(engine, settings)) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest_asyncio.fixture(loop_scope="session")
async def keyed_page(visit: Visit, guard: Guard, keyed_server: str) -> Page:
    """Return a page of the server that asks for an API key."""
    guard.add_host(keyed_server)
    guard.allow("401")
    return await visit(keyed_server)
