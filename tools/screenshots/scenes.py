"""What is done on each page before its picture is taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from playwright.async_api import Page, expect

from tests.support.browser import call


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture: the address of the page behind `#/`, and what is done there."""

    address: str
    play: Callable[[Page], Awaitable[None]]


async def fill_server(page: Page) -> None:
    """Let the server know conversations that share their beginnings, and states under names."""
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
    for question in ("What is the capital of France?", "How much is 12 + 30?"):
        field = page.get_by_role("textbox", name="Message")
        await field.fill(question)
        await field.press("Enter")
        await expect(page.get_by_role("button", name="Send")).to_be_visible()


async def write(page: Page) -> None:
    field = page.get_by_role("textbox", name="Text")
    await field.fill("User: Write a haiku about the sea.\n\nAssistant:")
    await field.press("Control+Enter")
    await expect(page.locator(".write-facts")).to_contain_text("ended")
    await page.get_by_role("button", name="Colour all").click()
    await expect(page.locator(".write-facts")).to_contain_text("ended")
    await expect(page.get_by_role("button", name="Go on", exact=True)).to_be_visible()
    box = await page.locator(".editor .token", has_text="shore").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)  # the field lies above it
    await expect(page.locator(".popover")).to_be_visible()


async def tree(page: Page) -> None:
    await expect(page.get_by_role("treeitem").first).to_be_visible()


async def named(page: Page) -> None:
    await expect(page.get_by_role("row").filter(has_text="poet").first).to_be_visible()


SCENES: Final = {
    "chat": Scene("chat", chat),
    "write": Scene("write", write),
    "states": Scene("states", tree),
    "states-named": Scene("states/named", named),
}
"""By the name of the picture."""
