"""Broken connections, and content meant to break the page: a clear message, no lost text, no script that runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest_asyncio
from aiohttp.test_utils import TestServer
from playwright.async_api import Page, expect

from rnn_engine.errors import OverloadedError
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import ServerSettings
from tests.support.browser import Guard, Visit, call, open_address, wait_until_kept
from tests.support.cut_proxy import CutProxy, cut_proxy
from tests.support.fake_engine import FakeEngine, encode

HOSTILE = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
"""What would set `window.ran` where it became HTML."""

NEVER_WRITE = """() => {
    const {transaction} = IDBDatabase.prototype;
    IDBDatabase.prototype.transaction = function (table, mode) {
        const store = {put: () => ({}), delete: () => ({})};
        return mode === "readwrite" ? {objectStore: () => store} : transaction.call(this, table, mode);
    };
}"""
"""Writing to the browser's storage never ends."""


@dataclass(frozen=True, slots=True)
class Fake:
    """A server over the fake engine, and the proxy to it."""

    engine: FakeEngine
    way: CutProxy


@pytest_asyncio.fixture(loop_scope="session")
async def fake(guard: Guard) -> AsyncIterator[Fake]:
    engine = FakeEngine(reply=lambda _: "One two three four")
    async with TestServer(make_app(engine, ServerSettings())) as server, cut_proxy(server.port or 0) as way:
        guard.add_host(way.url)
        yield Fake(engine, way)
        await guard.close_pages()


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
    answer = page.get_by_role("article", name="Model")
    await say(page, "Count.")
    await expect(answer).to_contain_text("One two")
    await fake.way.cut()
    await expect(answer.get_by_role("alert")).to_contain_text("The connection broke before the end.")
    await expect(answer).to_contain_text("One two")
    await fake.engine.left.wait()
    await answer.get_by_role("button", name="Try again").click()
    await expect(answer.get_by_role("alert")).to_contain_text("The server does not answer.")
    fake.engine.hold = None
    await fake.way.mend()
    await answer.get_by_role("button", name="Try again").click()
    await expect(answer).to_contain_text("One two three four")
    await expect(answer).to_contain_text("3 / 3")


async def test_a_page_that_is_closed_in_the_middle_keeps_what_was_shown(visit: Visit, fake: Fake) -> None:
    fake.engine.hold = 7
    page = await visit(f"{fake.way.url}/#/chat")
    await say(page, "Count.")
    answer = page.get_by_role("article", name="Model")
    await expect(answer).to_contain_text("One two")
    await page.get_by_role("textbox", name="Message").fill("My next question")
    await wait_until_kept(page, "messages", "My next question")
    await page.reload()
    await expect(answer).to_contain_text("One two")
    await expect(page.get_by_role("textbox", name="Message")).to_have_value("My next question")
    fake.engine.hold, fake.engine.reply = None, lambda _: "three four"
    await answer.get_by_role("button", name="Continue the answer").click()
    await expect(answer).to_contain_text("One twothree four")


async def test_a_page_that_is_closed_while_the_browser_writes_keeps_the_answer(visit: Visit, fake: Fake) -> None:
    page = await visit(f"{fake.way.url}/#/chat")
    await page.clock.install()
    await page.reload()
    await page.evaluate(NEVER_WRITE)
    await say(page, "Count.")
    answer = page.get_by_role("article", name="Model")
    await page.clock.run_for(1000)
    await expect(answer).to_contain_text("One two three four")
    await page.clock.run_for(1000)
    await page.reload()
    await expect(answer).to_contain_text("One two three four")


async def test_a_server_that_is_started_again_is_found(visit: Visit, guard: Guard, fake: Fake) -> None:
    guard.allow("ERR_|Failed to load")
    page = await visit(f"{fake.way.url}/#/chat")
    await page.clock.install()
    await page.reload()
    header = page.get_by_role("banner")
    await expect(header.get_by_text("Connected")).to_be_visible()
    await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    await fake.way.cut()
    await page.clock.fast_forward(6000)
    await expect(header.get_by_text("No connection")).to_be_visible()
    await say(page, "Count.")
    await expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")
    another = FakeEngine(reply=lambda _: "Here I am", model="another")
    async with TestServer(make_app(another, ServerSettings())) as server:
        await fake.way.mend(server.port)
        await page.clock.fast_forward(6000)
        await expect(header.get_by_text("Connected")).to_be_visible()
        await expect(header.get_by_text("another")).to_be_visible()
        await page.get_by_role("button", name="Try again").click()
        await page.clock.run_for(1000)
        await expect(page.get_by_role("article", name="Model")).to_contain_text("Here I am")
        await guard.close_pages()


async def test_a_text_that_breaks_off_keeps_its_tokens_and_goes_on(visit: Visit, guard: Guard, fake: Fake) -> None:
    guard.allow("ERR_|Failed to load")
    fake.engine.hold = 7
    page = await visit(f"{fake.way.url}/#/write")
    field = page.get_by_role("textbox", name="Text")
    await field.fill(HOSTILE)
    await field.press("Control+Enter")
    await expect(field).to_have_value(f"{HOSTILE}One two")
    await fake.way.cut()
    await expect(page.get_by_text("The connection broke before the end.")).to_be_visible()
    await expect(page.get_by_role("button", name="Continue", exact=True)).to_be_visible()
    await page.get_by_role("button", name="Continue", exact=True).click()
    await expect(page.get_by_text("The server does not answer.")).to_be_visible()
    await expect(field).to_have_value(f"{HOSTILE}One two")
    fake.engine.hold = None
    await fake.way.mend()
    await page.get_by_role("button", name="Continue", exact=True).click()
    await expect(field).to_have_value(f"{HOSTILE}One twoOne two three four")
    assert [*fake.engine.requests[-1].prompt] == [*encode(HOSTILE), *encode("One two")]
    assert await nothing_ran(page)


async def test_a_key_that_is_not_given_is_not_asked_for_again_and_again(keyed_page: Page) -> None:
    page = keyed_page
    await page.clock.install()
    await page.reload()
    dialog = page.get_by_role("dialog", name="API key")
    await dialog.get_by_role("button", name="Close").click()
    await expect(dialog).to_have_count(0)
    async with page.expect_response("**/v1/models") as answer:
        await page.clock.fast_forward(6000)
    assert (await answer.value).status == 401
    await expect(page.get_by_role("banner").get_by_text("API key")).to_be_visible()
    await expect(dialog).to_have_count(0)
    await say(page, "Count.")
    await expect(dialog).to_be_visible()


async def test_a_server_that_answers_before_the_page_is_painted_gets_its_key(keyed_page: Page) -> None:
    page = keyed_page
    await page.clock.install()
    await page.clock.pause_at(datetime.now(UTC) + timedelta(hours=1))  # no frame is painted, and no timer fires
    async with page.expect_response("**/v1/models") as answer:
        await page.reload()
    assert (await answer.value).status == 401
    await page.evaluate("fetch('/v1/models')")  # by its answer, the page has read the first one
    await page.clock.resume()
    await expect(page.get_by_role("dialog", name="API key")).to_be_visible()


async def test_a_full_queue_is_told_in_the_servers_words(visit: Visit, guard: Guard, fake: Fake) -> None:
    guard.allow("429")
    fake.engine.refuse = OverloadedError("the queue is full: 64 requests wait", 2.0)
    page = await visit(f"{fake.way.url}/#/chat")
    await say(page, "Count.")
    await expect(page.get_by_role("alert")).to_contain_text("the queue is full: 64 requests wait")
    await expect(page.get_by_role("article", name="You")).to_contain_text("Count.")
    fake.engine.refuse = None
    await page.get_by_role("button", name="Try again").click()
    await expect(page.get_by_role("article", name="Model").last).to_contain_text("One two three four")


async def test_a_very_long_text(visit: Visit, fake: Fake) -> None:
    fake.engine.reply = lambda request: f"{len(request.prompt):,}"
    page = await visit(f"{fake.way.url}/#/chat")
    await say(page, "word " * 200_000)
    await expect(page.get_by_role("article", name="Model")).to_contain_text("1,000,0")
    await page.reload()
    await expect(page.get_by_role("article", name="Model")).to_contain_text("1,000,0")
    await say(page, "And now?")
    await expect(page.get_by_role("article", name="Model")).to_have_count(2)
    await expect(page.get_by_role("article", name="Model").last).to_contain_text("1,000,0")


async def test_hostile_texts_are_shown_and_not_run(visit: Visit, fake: Fake) -> None:
    name = HOSTILE.replace("/", "|")  # no state's name has a slash
    fake.engine.model = HOSTILE
    fake.engine.reply = lambda _: HOSTILE
    page = await visit(f"{fake.way.url}/#/chat")
    await call(page, "POST", "/v1/states", {"name": name, "prompt": HOSTILE})
    await page.reload()
    await say(page, HOSTILE)
    await expect(page.get_by_role("article", name="You")).to_contain_text(HOSTILE)
    await expect(page.get_by_role("article", name="Model")).to_contain_text("<script>window.ran")
    await expect(page.get_by_role("heading", name="<script>")).to_be_visible()
    await page.get_by_label("Initial state").select_option(name)
    await page.get_by_role("button", name="Settings").click()
    await page.get_by_label("System text").fill(HOSTILE)
    for address in ("states", "states/named", "write"):
        await open_address(page, address)
        if address == "states/named":
            await expect(page.get_by_role("button", name=name, exact=True)).to_be_visible()
    assert await nothing_ran(page)


async def test_a_hostile_file_of_conversations_is_taken_in_as_text(visit: Visit, fake: Fake, tmp_path: Path) -> None:
    page = await visit(f"{fake.way.url}/#/chat")
    file = tmp_path / "conversations.json"
    message: dict[str, object] = {
        "id": HOSTILE,
        "parent": None,
        "role": "user",
        "content": HOSTILE,
        "reasoning": {"a": 1},
        "error": [],
    }
    answer = {
        **message, "id": "b", "parent": HOSTILE, "role": "assistant", "reasoning": HOSTILE, "finish": {},
        "stats": {"tokens": HOSTILE, "perSecond": {}}, "calls": [{"id": "", "name": HOSTILE, "arguments": HOSTILE}],
    }  # fmt: skip
    settings = {"state": HOSTILE, "system": HOSTILE, "tools": HOSTILE, "sampling": {"temperature": HOSTILE, "x": {}}}
    conversation = {"id": HOSTILE, "title": HOSTILE, "changed": {}, "messages": [message, answer], "chosen": {"": 5}}
    kept = {"format": "rnn-engine conversations", "version": 1}
    file.write_text(json.dumps(kept | {"conversations": [conversation | {"settings": settings}]}))
    await page.get_by_label("Import").set_input_files(file)
    for _ in range(2):
        await expect(page.get_by_role("article", name="You")).to_contain_text("<script>window.ran")
        await expect(page.get_by_role("article", name="Model")).to_contain_text("<script>window.ran")
        await expect(page.get_by_role("heading", name="<script>")).to_be_visible()
        assert await nothing_ran(page)
        await page.reload()
    broken: tuple[object, ...] = (
        [{}],
        5,
        [conversation],
        [conversation | {"settings": settings, "messages": [answer]}],
    )
    for conversations in broken:
        file.write_text(json.dumps(kept | {"conversations": conversations}))
        await page.get_by_label("Import").set_input_files(file)
        await expect(page.get_by_role("alert")).to_contain_text("conversations.json is not a file of conversations")
        await page.get_by_role("alert").get_by_role("button", name="Close").click()
        await expect(page.get_by_role("alert")).to_have_count(0)
