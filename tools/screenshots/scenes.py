"""What is done on each page before its picture is taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from playwright.async_api import Page, expect


async def chat(page: Page) -> None:
    for question in ("What is the capital of France?", "How much is 12 + 30?"):
        field = page.get_by_role("textbox", name="Message")
        await field.fill(question)
        await field.press("Enter")
        await expect(page.get_by_role("button", name="Send")).to_be_visible()


SCENES: Final[dict[str, Callable[[Page], Awaitable[None]]]] = {"chat": chat}
"""By the name of the page in its address."""
