"""Axe finds nothing serious on any page, in light and dark colours."""

from __future__ import annotations

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect

from tests.support.browser import DESKTOP, PHONE, ColorScheme, Visit

SERIOUS = ("serious", "critical")


async def breaches(page: Page) -> list[str]:
    """Return a line for each rule and element of the page that breaks it seriously."""
    found = (await Axe().run(page)).response["violations"]
    return [
        f"{page.url}: {each['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for each in found
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]


async def page_names(page: Page) -> list[str]:
    links = page.get_by_role("navigation").get_by_role("link")
    await expect(links.first).to_be_visible()
    return [(await link.get_attribute("href") or "").removeprefix("#/") for link in await links.all()]


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
async def test_pages_are_accessible(visit: Visit, color_scheme: ColorScheme) -> None:
    page = await visit("/#/chat", color_scheme=color_scheme)
    field = page.get_by_role("textbox", name="Message")
    await field.fill("Write `code`, **bold** and [a link](https://example.com).")
    found = await breaches(page)
    await field.press("Enter")
    await expect(page.get_by_role("article", name="Model")).to_be_visible()
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    for name in await page_names(page):
        await page.goto(f"{page.url.partition('#')[0]}#/{name}")
        await expect(page.get_by_role("main").locator("*").first).to_be_visible()
        for viewport in (DESKTOP, PHONE):
            await page.set_viewport_size(viewport)
            found += await breaches(page)
    assert found == []
