"""What breaks on the way to the server, or is meant to break the page: a clear message, nothing lost, nothing run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest_asyncio
from aiohttp.test_utils import TestServer
from playwright.async_api import Page, expect

from rnn_engine.errors import OverloadedError
from server.app import make_app
from server.settings import ServerSettings
from tests.support.browser import Guard, Visit
from tests.support.cut_proxy import CutProxy, cut_proxy
from tests.support.fake_engine import FakeEngine

HOSTILE = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
"""What would set `window.ran` where it became HTML."""


@dataclass(frozen=True, slots=True)
class Fake:
    """A server over the fake engine, and the way to it."""

    engine: FakeEngine
    way: CutProxy


@pytest_asyncio.fixture(loop_scope="session")
async def fake(guard: Guard) -> AsyncIterator[Fake]:
    engine = FakeEngine(reply=lambda _: "One two three four")
    async with TestServer(make_app(engine, ServerSettings())) as server, cut_proxy(server.port or 0) as way:
        guard.add_host(way.url)
        yield Fake(engine, way)


async def say(page: Page, text: str) -> None:
    field = page.get_by_role("textbox", name="Message")
    await field.fill(text)
    await field.press("Enter")


async def nothing_ran(page: Page) -> bool:
    return await page.evaluate("window.ran") is None


async def test_a_stream_that_breaks_leaves_what_was_shown(visit: Visit, guard: Guard, fake: Fake) -> None:
    guard.allow("ERR_|Failed to load")
    fake.engine.hold = 7
    page = await visit(f"{fake.way.url}/#/chat")
    await say(page, "Count.")
    await expect(page.get_by_role("article", name="Model")).to_contain_text("One two")
    await fake.way.cut()
    await expect(page.get_by_text("The connection broke before the end.")).to_be_visible()
    await expect(page.get_by_role("article", name="You")).to_have_text("Count.")
    await expect(page.get_by_role("article", name="Model")).to_contain_text("One two")
    await fake.engine.left.wait()
    await say(page, "Go on.")
    await expect(page.get_by_text("The server does not answer.")).to_be_visible()
    fake.engine.hold = None
    await fake.way.mend()
    await say(page, "Again.")
    await expect(page.get_by_role("article", name="Model").last).to_contain_text("One two three four")


async def test_a_full_queue_is_told_in_the_servers_words(visit: Visit, guard: Guard, fake: Fake) -> None:
    guard.allow("429")
    fake.engine.refuse = OverloadedError("the queue is full: 64 requests wait", 2.0)
    page = await visit(f"{fake.way.url}/#/chat")
    await say(page, "Count.")
    await expect(page.get_by_text("the queue is full: 64 requests wait")).to_be_visible()
    await expect(page.get_by_role("article", name="You")).to_have_text("Count.")
    fake.engine.refuse = None
    await say(page, "Again.")
    await expect(page.get_by_role("article", name="Model").last).to_contain_text("One two three four")


async def test_a_very_long_text(visit: Visit, guard: Guard, fake: Fake) -> None:
    fake.engine.reply = lambda request: f"{len(request.prompt):,}"
    page = await visit(f"{fake.way.url}/#/chat")
    await say(page, "word " * 200_000)
    await expect(page.get_by_role("article", name="Model")).to_contain_text("1,000,0")


async def test_hostile_texts_are_shown_and_not_run(visit: Visit, fake: Fake) -> None:
    fake.engine.model = HOSTILE
    fake.engine.reply = lambda _: HOSTILE
    page = await visit(f"{fake.way.url}/#/chat")
    await say(page, HOSTILE)
    await expect(page.get_by_role("article", name="You")).to_have_text(HOSTILE)
    await expect(page.get_by_role("article", name="Model")).to_contain_text("<script>window.ran")
    assert await nothing_ran(page)
