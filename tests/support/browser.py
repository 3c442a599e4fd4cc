"""Helpers of the tests of the web page: opening pages in the browser, and noting what pages may not do."""

from __future__ import annotations

import re
from typing import Any, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

from playwright.async_api import ConsoleMessage, Page, Request, ViewportSize, expect

ColorScheme: TypeAlias = Literal["light", "dark"]

DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 360, "height": 720}


class Visit(Protocol):
    """A function that opens a page in a new context."""

    async def __call__(
        self,
        path: str = "/",
        *,
        viewport: ViewportSize = DESKTOP,
        color_scheme: ColorScheme = "light",
        locale: str = "en-GB",
    ) -> Page:
        """Open a path of the session's server, or an address that begins with http."""
        ...


class Guard:
    """A guard of pages, which notes errors and requests to other hosts than `roots`."""

    def __init__(self, *roots: str) -> None:
        self._hosts = {urlsplit(root).netloc for root in roots}
        self._allowed: list[re.Pattern[str]] = []
        self._noted: list[str] = []
        self._pages: list[Page] = []

    def allow(self, pattern: str) -> None:
        """Allow errors that match `pattern`, since the browser reports an answer such as 400 as an error."""
        self._allowed.append(re.compile(pattern))

    def add_host(self, root: str) -> None:
        """Allow pages to send requests to another server, too."""
        self._hosts.add(urlsplit(root).netloc)

    def watch(self, page: Page) -> None:
        self._pages.append(page)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self._noted.append(f"page error: {error}"))
        page.on("request", self._on_request)

    async def close_pages(self) -> None:
        """Close all pages, as a test must do before their server stops: they would note that it no longer answers."""
        for page in self._pages:
            await page.context.close()
        self._pages.clear()

    def check(self) -> None:
        """Fail if something was noted that is not allowed."""
        noted = [line for line in self._noted if not any(pattern.search(line) for pattern in self._allowed)]
        assert noted == [], noted

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._noted.append(f"console: {message.text} {message.location.get('url', '')}")

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.netloc not in self._hosts:
            self._noted.append(f"request to another host: {request.url}")


async def sideways_scroll(page: Page) -> int:
    """Return by how many pixels the page is wider than its window."""
    width: int = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return width


async def open_address(page: Page, address: str) -> None:
    """Go to an address, given without `#/`, and wait until its page or part is what is shown."""
    await page.goto(f"{page.url.partition('#')[0]}#/{address}")
    await expect(page.locator(f"a[aria-current][href='#/{address}']")).to_be_attached()
    await expect(page.get_by_role("main").locator("*").first).to_be_visible()


async def wait_until_kept(page: Page, draft: str, text: str) -> None:
    """Make the page write its drafts at once, as when it is left, and wait until the draft holds `text`."""
    await page.evaluate(
        """async ([draft, text]) => {
            const {readRecords} = await import("/web/storage.js");
            dispatchEvent(new Event("pagehide"));
            const has = (record) => record.id === draft && JSON.stringify(record).includes(text);
            while (!(await readRecords("drafts")).some(has)) await new Promise((resolve) => setTimeout(resolve, 20));
        }""",
        [draft, text],
    )


async def call(page: Page, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401
    """Return the answer of the page's server to a call."""
    return await page.evaluate(
        """async ([method, path, body]) => {
            const {send} = await import("/web/api.js");
            return (await send(method, path, {body: body ?? undefined})).json();
        }""",
        [method, path, body],
    )
