"""Take a picture of each page, in light and dark colours and in two sizes: python -m tools.screenshots

The tool starts a server with the demo model. The pictures go to docs/screenshots.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import click
from playwright.async_api import Browser, Page, ViewportSize, async_playwright, expect

from tools.live_server.process import ROOT, ServerProcess
from tools.screenshots.scenes import SCENES, Scene, fill_server
from tools.setup.programs import BROWSER

ColorScheme: TypeAlias = Literal["light", "dark"]

SCHEMES: Final[tuple[ColorScheme, ...]] = ("light", "dark")
SIZES: Final[dict[str, ViewportSize]] = {
    "desktop": {"width": 1280, "height": 800},
    "phone": {"width": 390, "height": 844},
}
_QUALITY: Final = 80  # of WebP
_FOLDER: Final = ROOT / "docs" / "screenshots"
_TIMEOUT_MS: Final = 60_000


@click.command()
@click.option(
    "--only", multiple=True, type=click.Choice(list(SCENES)), help="Take only this picture. May be given several times."
)
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve.")
@click.option("--format", "image", type=click.Choice(["webp", "png"]), default="webp", show_default=True)
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), default=_FOLDER, show_default=True)
def main(only: Sequence[str], device: str, image: str, folder: Path) -> None:
    """Take pictures of the web page."""
    folder.mkdir(parents=True, exist_ok=True)
    with ServerProcess(("--device", device)) as server:
        asyncio.run(_take_all(server.url, only or list(SCENES), image, folder))
    total = sum(path.stat().st_size for path in folder.glob(f"*.{image}"))
    click.echo(f"{total:,} bytes together")


async def _take_all(url: str, names: Sequence[str], image: str, folder: Path) -> None:
    expect.set_options(timeout=_TIMEOUT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=BROWSER.find(), args=["--no-sandbox"])
        page = await browser.new_page()
        await page.goto(url)
        await fill_server(page)
        for name in names:
            for size in SIZES:
                for scheme in SCHEMES:
                    path = folder / f"{name}-{size}-{scheme}.{image}"
                    await _take(browser, url, SCENES[name], size, scheme, path)
                    click.echo(f"{path.stat().st_size:9,} {path.name}")


async def _take(browser: Browser, url: str, scene: Scene, size: str, scheme: ColorScheme, path: Path) -> None:
    context = await browser.new_context(
        viewport=SIZES[size], color_scheme=scheme, locale="en-GB", reduced_motion="reduce"
    )
    page = await context.new_page()
    page.set_default_timeout(_TIMEOUT_MS)
    await page.goto(f"{url}/#/{scene.address}")
    await scene.play(page)
    await take_picture(page, path)
    await context.close()


async def take_picture(page: Page, path: Path) -> None:
    """Write a picture of the browser window to a file, as .webp or .png by its name."""
    await page.evaluate("document.activeElement?.blur()")  # its caret blinks
    session = await page.context.new_cdp_session(page)
    image = path.suffix.removeprefix(".")
    quality = {"quality": _QUALITY} if image == "webp" else {}
    taken = await session.send("Page.captureScreenshot", {"format": image, **quality})
    path.write_bytes(base64.b64decode(taken["data"]))


if __name__ == "__main__":
    main()
