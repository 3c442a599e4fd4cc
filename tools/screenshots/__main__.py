"""Takes a picture of each page, in light and dark colours and in two sizes: python -m tools.screenshots

It serves the demo model itself. The pictures go to docs/screenshots.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import click
from playwright.async_api import Browser

from tools.live_server.process import ROOT, ServerProcess
from tools.screenshots.pictures import SCHEMES, SIZES, ColorScheme, open_browser, take_picture
from tools.screenshots.scenes import SCENES

_FOLDER: Final = ROOT / "docs" / "screenshots"
_TIMEOUT_MS: Final = 60_000


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(SCENES)), help="A page. May be given several times.")
@click.option("--device", default="auto", show_default=True, help="Where the model runs.")
@click.option("--format", "image", type=click.Choice(["webp", "png"]), default="webp", show_default=True)
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), default=_FOLDER, show_default=True)
def main(only: Sequence[str], device: str, image: Literal["webp", "png"], folder: Path) -> None:
    """Take pictures of the web page."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as logs, ServerProcess(Path(logs) / "log", ("--device", device)) as server:
        asyncio.run(_take_all(server.url, only or list(SCENES), image, folder))
    total = sum(path.stat().st_size for path in folder.glob(f"*.{image}"))
    click.echo(f"{total:,} bytes together")


async def _take_all(url: str, names: Sequence[str], image: Literal["webp", "png"], folder: Path) -> None:
    async with open_browser() as browser:
        for name in names:
            for size in SIZES:
                for scheme in SCHEMES:
                    path = folder / f"{name}-{size}-{scheme}.{image}"
                    await _take(browser, f"{url}/#/{name}", name, size, scheme, path, image)
                    click.echo(f"{path.stat().st_size:9,} {path.name}")


async def _take(
    browser: Browser, url: str, name: str, size: str, scheme: ColorScheme, path: Path, image: Literal["webp", "png"]
) -> None:
    context = await browser.new_context(
        viewport=SIZES[size], color_scheme=scheme, locale="en-GB", reduced_motion="reduce"
    )
    page = await context.new_page()
    page.set_default_timeout(_TIMEOUT_MS)
    await page.goto(url)
    await SCENES[name](page)
    await take_picture(page, path, image)
    await context.close()


if __name__ == "__main__":
    main()
