"""`python -m tools.screenshots`: take the pictures of the web page that README.md shows, of the demo model."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypeAlias

import click
from playwright.async_api import Page, ViewportSize, async_playwright, expect

from tests.support.browser import call
from tools.live_server.process import ROOT, ServerProcess
from tools.setup.programs import BROWSER

Play: TypeAlias = Callable[[Page], Awaitable[None]]

_SIZE: Final[ViewportSize] = {"width": 1280, "height": 800}
_QUALITY: Final = 80  # of WebP
_FOLDER: Final = ROOT / "docs" / "screenshots"
_TIMEOUT_MS: Final = 60_000
_WHOLE: Final = "prompt tokens from the cache"  # stands under an answer that has ended
_TUNING_MS: Final = 600_000


async def fill_server(page: Page) -> None:
    """Fill the server with conversations that share their beginnings, for the page that shows the cache."""
    france, twelve = "What is the capital of France?", "How much is 12 + 30?"
    for said in (
        (france, "And of Japan?"),
        (france, "And of Italy?", "Tell me a joke."),
        (france, "Write a haiku about the sea."),
        (twelve, "How much is 5 + 3?"),
        ("Who are you?",),
    ):
        messages: list[dict[str, str]] = [{"role": "system", "content": "You are a helpful assistant."}]
        for text in said:
            messages.append({"role": "user", "content": text})
            answer = await call(page, "POST", "/v1/chat/completions", {"messages": messages, "temperature": 0})
            messages.append(answer["choices"][0]["message"])
    for name, text in (("guide", "You are a guide who knows every capital."), ("poet", "You answer in haiku.")):
        await call(page, "POST", "/v1/states", {"name": name, "prompt": f"System: {text}\n\n"})


async def chat(page: Page) -> None:
    field = page.get_by_role("textbox", name="Message")
    questions = ("What is the capital of France?", "Write a haiku about the sea.", "Tell me a joke.")
    for number, text in enumerate(questions):
        await field.fill(text)
        await field.press("Enter")
        await expect(page.get_by_text(_WHOLE)).to_have_count(number + 1)
    await page.get_by_label("Initial state").select_option("pirate")
    answer = page.get_by_role("article", name="Model").last
    await answer.get_by_role("button", name="Another answer").click()
    await expect(answer).to_contain_text("2 / 2")
    await expect(answer).to_contain_text(_WHOLE)
    await page.mouse.move(0, 0)


async def write(page: Page) -> None:
    await page.get_by_role("textbox", name="Text").fill("User: Tell me a joke.\n\nAssistant:")
    await page.get_by_role("button", name="Continue", exact=True).click()
    facts = page.locator(".write-facts")
    await expect(facts).to_contain_text("ended")
    await page.get_by_role("button", name="Show probabilities").click()
    await expect(facts).to_contain_text("perplexity")
    await expect(page.get_by_role("button", name="Continue", exact=True)).to_be_visible()
    box = await page.locator(".editor .token", has_text=re.compile("^ (Wh|Did|Two)")).first.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)  # the field lies above it
    await expect(page.locator(".popover")).to_be_visible()


async def states(page: Page) -> None:
    await expect(page.get_by_role("treeitem").first).to_be_visible()


async def tune(page: Page) -> None:
    await page.get_by_role("button", name="Try an example").click()
    await page.get_by_role("button", name="Tune demo").click()
    result = page.get_by_role("region", name="State of the tuning")
    await expect(result).to_contain_text("completed", timeout=_TUNING_MS)
    ask = page.get_by_role("textbox", name="Ask both")
    for question in ("What is the capital of Spain?", "How many legs does a dog have?"):
        await ask.fill(question)
        await ask.press("Enter")
        await expect(page.get_by_role("button", name="Send")).to_be_visible()


PICTURES: Final[dict[str, tuple[Play, Literal["light", "dark"]]]] = {
    "chat": (chat, "light"),
    "write": (write, "light"),
    "states": (states, "dark"),
    "tune": (tune, "light"),
}
"""Name of a page and of its picture -> what to do on it first, and its colours."""


@click.command()
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve.")
def main(device: str) -> None:
    """Take pictures of the web page."""
    with ServerProcess(("demo", "--device", device)) as server:
        asyncio.run(_take_all(server.url))


async def _take_all(url: str) -> None:
    expect.set_options(timeout=_TIMEOUT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=BROWSER.find(), args=["--no-sandbox"])
        page = await browser.new_page()
        await page.goto(url)
        await fill_server(page)
        for name, (play, colours) in PICTURES.items():
            page = await browser.new_page(viewport=_SIZE, color_scheme=colours, locale="en-GB", reduced_motion="reduce")
            page.set_default_timeout(_TIMEOUT_MS)
            await page.goto(f"{url}/#/{name}")
            await play(page)
            await page.evaluate("document.activeElement?.blur()")  # its caret blinks
            session = await page.context.new_cdp_session(page)  # Playwright itself writes no WebP
            taken = await session.send("Page.captureScreenshot", {"format": "webp", "quality": _QUALITY})
            (_FOLDER / f"{name}.webp").write_bytes(base64.b64decode(taken["data"]))
            click.echo(f"{name}.webp")


if __name__ == "__main__":
    main()
