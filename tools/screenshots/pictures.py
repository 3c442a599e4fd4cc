"""Pictures of a page in a browser, as small files."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal, TypeAlias

from playwright.async_api import Browser, Page, ViewportSize, async_playwright

from tools.setup.browser import find_browser

ColorScheme: TypeAlias = Literal["light", "dark"]

SCHEMES: Final[tuple[ColorScheme, ...]] = ("light", "dark")
SIZES: Final[dict[str, ViewportSize]] = {
    "desktop": {"width": 1280, "height": 800},
    "phone": {"width": 390, "height": 844},
}
_QUALITY: Final = 80  # of WebP


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Run the distribution's Chromium, and close it at the end. Raises FileNotFoundError if it is not installed."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


async def take_picture(page: Page, path: Path) -> None:
    """Write a picture of the window, in the format of the file's suffix: .webp or .png."""
    await page.evaluate("document.activeElement?.blur()")  # its caret blinks
    session = await page.context.new_cdp_session(page)
    image = path.suffix.removeprefix(".")
    quality = {"quality": _QUALITY} if image == "webp" else {}
    taken = await session.send("Page.captureScreenshot", {"format": image, **quality})
    path.write_bytes(base64.b64decode(taken["data"]))
