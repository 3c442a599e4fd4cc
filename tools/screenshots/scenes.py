"""The scenes to take pictures of: which page to open, and what to do on it first."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from playwright.async_api import Page, expect

from tests.support.browser import call

_WHOLE: Final = "prompt tokens from the cache"  # stands under an answer that has ended
_CHART_MS: Final = 8000
_STREAM: Final = """async (prompt) => {
    const {stream} = await import("/web/api.js");
    const body = {prompt, stream: true, max_tokens: 4000, ignore_eos: true};
    (async () => { for await (const _ of stream("/v1/completions", body)); })();
}"""


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture to take: the page's address after `#/`, and a function that acts on the page first."""

    address: str
    play: Callable[[Page], Awaitable[None]]


async def fill_server(page: Page) -> None:
    """Fill the server with conversations that share their beginnings, and with named states, for pages to show."""
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
    named = {entry["name"] for entry in (await call(page, "GET", "/v1/states"))["data"]}
    for name, text in (("guide", "You are a guide who knows every capital."), ("poet", "You answer in haiku.")):
        if name not in named:
            await call(page, "POST", "/v1/states", {"name": name, "prompt": f"System: {text}\n\n"})


async def chat(page: Page) -> None:
    for example in ("A sum", "A tool that the model may call"):
        await page.get_by_role("button", name=example).click()
        await expect(page.get_by_text(_WHOLE)).to_be_visible()
        await page.goto(page.url.partition("#")[0] + "#/chat")
        await page.reload()  # a new conversation
    field = page.get_by_role("textbox", name="Message")
    for number, text in enumerate(
        ("What is the capital of France?", "Write a haiku about the sea.", "Tell me a joke.")
    ):
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
    field = page.get_by_role("textbox", name="Text")
    await field.fill("User: Tell me a joke.\n\nAssistant:")
    await page.get_by_role("button", name="Go on", exact=True).click()
    facts = page.locator(".write-facts")
    await expect(facts).to_contain_text("ended")
    await page.get_by_role("button", name="Colour all").click()
    await expect(facts).to_contain_text("perplexity")
    await expect(page.get_by_role("button", name="Go on", exact=True)).to_be_visible()
    box = await page.locator(".editor .token", has_text=re.compile("^ (Wh|Did|Two)")).first.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)  # the field lies above it
    await expect(page.locator(".popover")).to_be_visible()


async def score(page: Page) -> None:
    await page.get_by_role("button", name="Try an example").click()
    await page.get_by_role("button", name="Score", exact=True).click()
    bars = page.get_by_role("list", name="How likely each choice is").get_by_role("listitem")
    await expect(bars).to_have_count(4)
    await bars.first.locator("summary").click()


async def tree(page: Page) -> None:
    await expect(page.get_by_role("treeitem").first).to_be_visible()


async def compare(page: Page) -> None:
    await expect(page.get_by_role("img", name="Layers from top to bottom")).to_be_visible()


async def text_map(page: Page) -> None:
    await page.get_by_role("button", name="Draw the map").click()
    await page.get_by_text("of the texts have the label").scroll_into_view_if_needed()


async def engine(page: Page) -> None:
    await expect(page.get_by_role("region", name="Slots", exact=True)).to_contain_text("0 of")
    for prompt in ("The sea", "Once upon a time", "My name is"):
        await page.evaluate(_STREAM, prompt)
    await expect(page.get_by_role("region", name="Slots", exact=True)).to_contain_text("3 of")
    await page.wait_for_timeout(_CHART_MS)  # the charts grow with time


SCENES: Final = {
    "chat": Scene("chat", chat),
    "write": Scene("write", write),
    "score": Scene("score", score),
    "states": Scene("states", tree),
    "states-compare": Scene("states/compare/pirate", compare),
    "states-map": Scene("states/map", text_map),
    "engine": Scene("engine", engine),
}
"""By the name of the picture."""
