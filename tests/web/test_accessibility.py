"""Axe finds no serious error on any page, in light and dark colours."""

from __future__ import annotations

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Locator, Page, ViewportSize, expect

from tests.support.browser import DESKTOP, PHONE, ColorScheme, Visit, open_address

SERIOUS = ("serious", "critical")
DIALOGS = {"states/named": ("New state",)}
"""The buttons of a part of the page that open dialogs."""


async def breaches(page: Page) -> list[str]:
    """Return a line for each serious breach, with the rule and the element."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(Axe().axe_script)
    found = await page.evaluate("axe.run({resultTypes: ['violations']}).then(({violations}) => violations)")
    return [
        f"{page.url}: {each['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for each in found
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]


async def addresses(links: Locator) -> list[str]:
    """Return the targets of links, without `#/`."""
    await expect(links.first).to_be_visible()
    found = [await link.get_attribute("href") or "" for link in await links.all()]
    return [address.removeprefix("#/") for address in found if address.startswith("#/")]


async def breaches_of_part(page: Page, address: str) -> list[str]:
    """Return the breaches at an address, and those in its dialogs."""
    await open_address(page, address)
    found = await breaches(page)
    for name in DIALOGS.get(address, ()):
        await page.get_by_role("button", name=name).click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        found += await breaches(page)
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
    return found


@pytest.mark.parametrize(("color_scheme", "viewport"), [("light", PHONE), ("dark", DESKTOP)])
async def test_pages_are_accessible(visit: Visit, color_scheme: ColorScheme, viewport: ViewportSize) -> None:
    page = await visit("/#/chat", color_scheme=color_scheme, viewport=viewport)
    field = page.get_by_role("textbox", name="Message")
    await field.fill("Write `code`, **bold** and [a link](https://example.com).")
    found = await breaches(page)
    await field.press("Enter")
    await expect(page.get_by_role("article", name="Model")).to_be_visible()
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    for name in await addresses(page.get_by_role("navigation").get_by_role("link")):
        await open_address(page, name)
        parts = page.get_by_role("main").locator(f"a[href^='#/{name}/']")
        for address in await addresses(parts) if await parts.count() else [name]:
            found += await breaches_of_part(page, address)
    assert found == []
