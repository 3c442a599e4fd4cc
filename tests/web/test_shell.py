"""The frame around the pages: languages, colours, phone width, and the API key."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, expect

from tests.support.browser import PHONE, Visit, sideways_scroll


async def test_the_header_tells_the_model_and_the_connection(visit: Visit) -> None:
    page = await visit()
    header = page.get_by_role("banner")
    await expect(header.get_by_text("Connected")).to_be_visible()
    await expect(header.get_by_text("demo", exact=True)).to_be_visible()
    await expect(header.get_by_role("link", name="Chat")).to_have_attribute("aria-current", "page")


async def test_the_language_is_the_browsers_until_another_is_chosen(visit: Visit) -> None:
    page = await visit(locale="zh-CN")
    await expect(page.get_by_role("link", name="对话")).to_be_visible()
    await page.get_by_role("button", name="English").click()
    await expect(page.get_by_role("link", name="Chat")).to_be_visible()
    await page.reload()
    await expect(page.get_by_role("link", name="Chat")).to_be_visible()
    await expect(page.locator("html")).to_have_attribute("lang", "en")


async def test_every_text_has_a_translation(visit: Visit) -> None:
    page = await visit()
    tables = await page.evaluate(
        "Promise.all([import('/web/strings/en.js'), import('/web/strings/zh.js')]).then(([a, b]) => [a.en, b.zh])"
    )
    english, chinese = tables
    assert list(english) == list(chinese)
    assert [key for key in english if not english[key].strip() or not chinese[key].strip()] == []
    holes = [[sorted(re.findall(r"{\w+}", text)) for text in table.values()] for table in tables]
    assert holes[0] == holes[1]


async def test_colours_follow_the_system_until_others_are_chosen(visit: Visit) -> None:
    page = await visit(color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = await page.evaluate(background)
    await page.get_by_role("button", name="Colours: as the system").click()
    await expect(page.get_by_role("button", name="Colours: light")).to_be_visible()
    light = await page.evaluate(background)
    assert dark != light
    await page.reload()
    assert await page.evaluate(background) == light


async def test_a_number_that_rounds_to_zero_has_no_sign(visit: Visit) -> None:
    page = await visit()
    numbers = (
        "import('/web/strings/index.js').then(({formatNumber}) => [-0.0001, -1.25].map((x) => formatNumber(x, 2)))"
    )
    assert await page.evaluate(numbers) == ["0", "-1.25"]


async def test_the_part_of_a_page_that_is_open_is_seen_among_the_others(visit: Visit) -> None:
    page = await visit("/#/states/map", viewport=PHONE)
    await expect(page.get_by_role("link", name="Map of texts")).to_be_in_viewport(ratio=0.9)


async def test_a_phone_needs_no_sideways_scroll(visit: Visit) -> None:
    page = await visit(viewport=PHONE)
    await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    assert await sideways_scroll(page) == 0


async def test_the_api_key_is_asked_for_once(keyed_page: Page) -> None:
    page = keyed_page
    dialog = page.get_by_role("dialog", name="API key")
    field = dialog.get_by_label("Key", exact=True)
    await expect(field).to_be_focused()
    await page.keyboard.type("wrong")
    await page.keyboard.press("Enter")
    await expect(dialog.get_by_role("alert")).to_contain_text("does not accept this key")
    await expect(field).to_be_focused()
    await field.fill("secret")
    await dialog.get_by_role("button", name="Use this key").click()
    await expect(page.get_by_text("demo", exact=True)).to_be_visible()
    await page.reload()
    await expect(page.get_by_text("demo", exact=True)).to_be_visible()
    await expect(dialog).to_have_count(0)


@pytest.mark.parametrize("address", ["nosuch", "engine/nosuch", "states/nosuch", "score/nosuch", "%"])
async def test_an_address_without_a_page_is_reported(visit: Visit, address: str) -> None:
    page = await visit(f"/#/{address}")
    await expect(page.get_by_role("heading", name="There is no such page")).to_be_visible()
    await expect(page.get_by_text(f"Nothing is at the address #/{address}.")).to_be_visible()
    await page.get_by_role("link", name="Go to Chat").click()
    await expect(page.get_by_role("textbox", name="Message")).to_be_visible()


@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
@pytest.mark.parametrize("width", [360, 719, 720, 768, 1079, 1080, 1179, 1180])
async def test_the_header_fits_and_no_word_in_it_is_split(visit: Visit, width: int, locale: str) -> None:
    page = await visit(viewport={"width": width, "height": 720}, locale=locale)
    await expect(page.locator(".connection.is-ok")).to_be_attached()
    words = page.get_by_role("navigation").first.get_by_role("link").locator("span")
    heights = await words.evaluate_all("(words) => words.map((word) => word.offsetHeight)")
    assert len(heights) == 8
    assert max(heights) < 30  # one line
    hidden_width = "(element) => element.scrollWidth - element.clientWidth"
    header = page.get_by_role("banner")
    assert await header.evaluate(hidden_width) == 0
    assert await header.locator(".model-name").evaluate(hidden_width) == 0


async def test_the_switch_to_chinese_needs_no_chinese_font(visit: Visit) -> None:
    page = await visit()
    switch = page.get_by_role("button", name="中文")
    await expect(switch.locator("svg")).to_be_visible()
    await expect(switch).to_have_text("")


async def test_the_header_links_to_the_http_api(visit: Visit) -> None:
    page = await visit()
    async with page.context.expect_page() as opening:
        await page.get_by_role("link", name="HTTP API").click()
    opened = await opening.value
    assert opened.url.endswith("/docs")
    await expect(opened.get_by_role("navigation").get_by_role("link").first).to_have_text("POST/v1/chat/completions")
