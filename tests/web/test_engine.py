"""The page Engine: running requests, and models that are loaded and unloaded."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from aiohttp.test_utils import TestServer
from playwright.async_api import Route, expect
from yarl import URL

from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from rnn_engine.forward import Progress
from rnn_engine.interface import EngineLike
from rnn_engine.loading.settings import LoadSettings
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import ServerSettings
from rnn_engine_server.models.orders import LoadEngine, LoadOrder
from rnn_engine_server.models.registry import ModelRegistry
from tests.support.browser import PHONE, Guard, Visit, sideways_scroll
from tests.support.cut_proxy import cut_proxy

ASK = """async (fields) => {
    const {stream} = await import("/web/api.js");
    window.answer = stream("/v1/completions", {prompt: "The sea", stream: true, ...fields});
    await window.answer.next();
}"""


def load_of(order: LoadOrder) -> LoadEngine:
    async def load(progress: Progress) -> EngineLike:
        return await Engine.load(
            order.path,
            LoadSettings(order.device or "cpu", weights=order.weights),
            name=order.name,
            num_slots=order.slots or 1,
            progress=progress,
        )

    return load


@pytest_asyncio.fixture(loop_scope="session")
async def folder_server(guard: Guard, tmp_path: Path) -> AsyncIterator[str]:
    """Yield the root URL of a server with a folder of models."""
    shutil.copy(model_path(), tmp_path / "other.safetensors")
    models = await ModelRegistry.load([LoadOrder("first", model_path())], "first", load_of)
    async with TestServer(make_app(models, ServerSettings(model_folder=tmp_path))) as server:
        yield str(server.make_url("")).rstrip("/")
        await guard.close_pages()


async def test_what_runs_is_seen_while_it_runs(visit: Visit) -> None:
    page = await visit("/#/engine")
    slots = page.get_by_role("region", name="Slots", exact=True)
    await expect(slots).to_contain_text("0 of 8 in use, 0 waiting")
    await page.evaluate(ASK, {"max_tokens": 100_000, "ignore_eos": True})
    await expect(slots).to_contain_text("1 of 8 in use")
    await expect(slots.get_by_role("listitem").first).to_contain_text("answer")
    await expect(slots.get_by_role("listitem").first).to_contain_text("of 100,000 tokens, prompt")
    for name, value in (("Tokens", "generated"), ("Time of a step", "on the host"), ("Requests", "slots in use")):
        chart = page.get_by_role("region", name=name, exact=True)
        await expect(chart.get_by_role("img")).to_have_attribute("aria-label", re.compile(rf"{value} [0-9]"))
        await expect(chart.locator("canvas")).to_be_visible()
    cache = page.get_by_role("region", name="Cache since the start")
    await expect(cache).to_contain_text("Hit: Device")
    await expect(page.get_by_role("region", name="Memory", exact=True)).to_contain_text("named states")
    await page.evaluate("window.answer.return()")
    await expect(slots).to_contain_text("0 of 8 in use")


async def test_a_phone_shows_all_of_it(visit: Visit) -> None:
    page = await visit("/#/engine", viewport=PHONE, color_scheme="dark", locale="zh-CN")
    await expect(page.get_by_role("region", name="内存", exact=True)).to_be_visible()
    assert await sideways_scroll(page) == 0
    await page.get_by_role("link", name="模型").click()
    await expect(page.get_by_role("region", name="demo")).to_be_visible()
    assert await sideways_scroll(page) == 0


async def test_models_are_loaded_and_unloaded(visit: Visit, guard: Guard, folder_server: str) -> None:
    guard.add_host(folder_server)
    page = await visit(f"{folder_server}/#/engine/models")
    await expect(page.get_by_role("region", name="first")).to_contain_text("loaded")
    await page.get_by_role("button", name="Load other.safetensors").click()
    dialog = page.get_by_role("dialog", name="Load other.safetensors")
    await dialog.get_by_label("Name").fill("second")
    await dialog.get_by_label("Slots").fill("2")
    await dialog.get_by_role("button", name="Load").click()
    second = page.get_by_role("region", name="second")
    await expect(page.get_by_text("“second” is loaded.")).to_be_visible()  # first, since it goes by itself
    await expect(second).to_contain_text("Slots2")
    await expect(page.get_by_role("combobox", name="Model")).to_be_visible()
    await second.get_by_role("button", name="Unload").click()
    await expect(second).to_contain_text("unloaded")
    await expect(second.get_by_role("button", name="Unload")).to_be_disabled()


async def test_a_server_without_a_folder_says_so(visit: Visit) -> None:
    page = await visit("/#/engine/models")
    await expect(page.get_by_text("The server has no folder of models")).to_be_visible()


async def test_parts_keep_their_order_whichever_is_loaded_first(visit: Visit) -> None:
    page = await visit("/#/engine")
    shown = asyncio.Event()

    async def hold(route: Route) -> None:
        await shown.wait()
        await route.continue_()

    await page.route("**/v1/models", hold)
    await page.get_by_role("link", name="Models").click()
    await expect(page.get_by_role("heading", name="Devices")).to_be_visible()
    shown.set()
    await expect(page.get_by_role("region", name="demo")).to_be_visible()
    headings = page.get_by_role("main").get_by_role("heading", level=2)
    assert await headings.all_text_contents() == ["Models of this server", "Models on disk", "Devices"]


async def test_a_server_that_goes_away_and_comes_back(visit: Visit, guard: Guard, web_server: str) -> None:
    guard.allow("ERR_|Failed to load")
    async with cut_proxy(URL(web_server).port or 0) as way:
        guard.add_host(way.url)
        page = await visit(f"{way.url}/#/engine")
        slots = page.get_by_role("region", name="Slots", exact=True)
        await expect(slots).to_be_visible()
        await way.cut()
        await expect(page.get_by_role("alert")).to_be_visible()
        await expect(slots).to_be_visible()  # the last known slots
        await way.mend()
        await expect(page.get_by_role("alert")).to_have_count(0)
