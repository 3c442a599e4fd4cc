"""What is done on each page before its picture is taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from playwright.async_api import Page, expect

_CALL: Final = """async ([method, path, body]) => {
    const {send} = await import("/web/api.js");
    return (await send(method, path, {body: body ?? undefined})).json();
}"""


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture: the address of the page behind `#/`, and what is done there."""

    address: str
    play: Callable[[Page], Awaitable[None]]


async def call(page: Page, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401
    """Return what the page's server answers to a call."""
    return await page.evaluate(_CALL, [method, path, body])


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


async def tree(page: Page) -> None:
    await expect(page.get_by_role("treeitem").first).to_be_visible()


async def named(page: Page) -> None:
    await expect(page.get_by_role("row").filter(has_text="poet").first).to_be_visible()


SCENES: Final = {
    "chat": Scene("chat", chat),
    "states": Scene("states", tree),
    "states-named": Scene("states/named", named),
}
"""By the name of the picture."""
