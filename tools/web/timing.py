"""Measures what a person waits for on the web page with the demo model: python -m tools.web.timing

It serves the demo model itself: first paint, from a click on an example to the whole answer, and from a message in a
branch of a long conversation to the first token of the answer.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import click
from playwright.async_api import Browser, Page

from tools.live_server.process import ServerProcess
from tools.screenshots.pictures import open_browser

_TIMEOUT_MS: Final = 120_000
_WHOLE: Final = "prompt tokens from the cache"  # stands under an answer that has ended
_FIRST_PAINT: Final = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
_WORDS: Final = "the red house and the old tree stand by the river under the moon "
_MESSAGES: Final = 8  # 2,000 tokens together


@click.command()
@click.option("--device", default="auto", show_default=True, help="Where the model runs.")
@click.option("--times", default=5, show_default=True, help="How often each is measured; the median is printed.")
def main(device: str, times: int) -> None:
    """Measure the web page."""
    with tempfile.TemporaryDirectory() as logs, ServerProcess(Path(logs) / "log", ("--device", device)) as server:
        asyncio.run(_measure(server.url, times))


async def _measure(url: str, times: int) -> None:
    async with open_browser() as browser:
        paints = [await _first_paint(browser, url) for _ in range(times)]
        click.echo(f"first paint: {_summary(paints)}")
        answers = [await _answer_to_example(browser, url) for _ in range(times)]
        click.echo(f"open the page, click an example, read the whole answer: {_summary(answers)}")
        page = await _long_conversation(browser, url)
        forks = [await _fork(page, number) for number in range(times)]
        click.echo(f"first token of a branch from the middle: {_summary([first for first, _ in forks])}")
        click.echo(f"told below the last: {forks[-1][1]}")


async def _first_paint(browser: Browser, url: str) -> float:
    page = await _open(browser, url)
    milliseconds: float = await page.evaluate(_FIRST_PAINT)
    await page.context.close()
    return milliseconds


async def _answer_to_example(browser: Browser, url: str) -> float:
    begun = time.perf_counter()
    page = await _open(browser, url)
    await page.locator(".example").first.click()
    await page.get_by_text(_WHOLE).wait_for()
    milliseconds = 1000 * (time.perf_counter() - begun)
    await page.context.close()
    return milliseconds


async def _long_conversation(browser: Browser, url: str) -> Page:
    page = await _open(browser, url)
    for number in range(_MESSAGES):
        await _send(page, f"Remember part {number}: {_WORDS * 12}")
        await page.get_by_text(_WHOLE).nth(number).wait_for()
    stats = await page.locator(".stats").last.inner_text()
    click.echo(f"a conversation of {_MESSAGES} messages; below its last answer: {stats}")
    return page


async def _fork(page: Page, number: int) -> tuple[float, str]:
    """Begin a branch in the middle; return the milliseconds to its first token, and all that the page tells."""
    answers = page.get_by_role("article", name="Model")
    middle = answers.nth(_MESSAGES // 2 - 1)
    await middle.get_by_role("button", name="Go on from here").click()
    await _send(page, f"What is {number} + 1?")
    stats = answers.nth(_MESSAGES // 2).locator(".stats")
    await stats.get_by_text(_WHOLE).wait_for()
    text = await stats.inner_text()
    return float(text.split("first after ")[1].split(" ms")[0].replace(",", "")), text


async def _send(page: Page, text: str) -> None:
    field = page.get_by_role("textbox", name="Message")
    await field.fill(text)
    await field.press("Enter")


async def _open(browser: Browser, url: str) -> Page:
    context = await browser.new_context(locale="en-GB")
    page = await context.new_page()
    page.set_default_timeout(_TIMEOUT_MS)
    await page.goto(url)
    return page


def _summary(milliseconds: list[float]) -> str:
    return f"median {statistics.median(milliseconds):.0f} ms, longest {max(milliseconds):.0f} ms"


if __name__ == "__main__":
    main()
