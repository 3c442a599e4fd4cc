"""The page Search."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Page, expect

from tests.support.browser import PHONE, Guard, Visit, sideways_scroll

SPIDER = "A spider has eight legs."


async def rows_of(page: Page) -> list[list[str]]:
    """Return the cells of the table of what was run, the last first."""
    rows = page.get_by_role("table").locator("tbody tr")
    return [await row.locator("td").all_text_contents() for row in await rows.all()]


async def test_texts_are_read_once_and_a_query_runs_few_tokens(visit: Visit, tmp_path: Path) -> None:
    file = tmp_path / "more.txt"
    file.write_text("<script>window.ran = true</script>\n\nBread is made of flour.\n")
    page = await visit("/#/search")
    button = page.get_by_role("button", name="Search", exact=True)
    await expect(button).to_be_disabled()
    await page.get_by_role("textbox", name="Texts").fill(f"{SPIDER}\n{SPIDER}")
    await page.locator("input[type=file]").set_input_files(file)
    await expect(page.get_by_text("Texts: 3")).to_be_visible()
    query = page.get_by_role("textbox", name="Query")
    await query.fill("legs?")
    await query.press("Enter")
    hits = page.get_by_role("list", name="Texts, the best answer first").get_by_role("listitem")
    await expect(hits).to_have_count(3)
    await expect(hits.filter(has_text=SPIDER)).to_contain_text("by vector: place")
    await query.fill("flour?")
    await button.click()
    await expect(page.get_by_role("row", name="flour?")).to_be_visible()
    last, first, reading = await rows_of(page)
    assert (first[0], reading[0]) == ("legs?", "3 new texts")
    assert int(last[1]) < int(reading[1])
    assert int(last[1]) < int(last[2])
    await page.get_by_role("textbox", name="Texts").fill(SPIDER)
    await button.click()
    await expect(hits).to_have_count(1)
    assert len(await rows_of(page)) == 4  # nothing new was read
    assert not await page.evaluate("'ran' in window")


async def test_the_example_works_on_a_phone_in_chinese(visit: Visit) -> None:
    page = await visit("/#/search", viewport=PHONE, color_scheme="dark", locale="zh-CN")
    await page.get_by_role("button", name="试试示例").click()
    await page.get_by_role("button", name="检索", exact=True).click()
    await expect(page.get_by_role("listitem").filter(has_text="spider")).to_be_visible()
    assert await sideways_scroll(page) == 0


async def test_a_refusal_is_shown(visit: Visit, guard: Guard) -> None:
    guard.allow("Failed to load resource")
    page = await visit("/#/search")
    await page.get_by_role("textbox", name="Texts").fill("x" * 40)
    await page.get_by_role("textbox", name="Query").fill("y")
    error = {"message": "no room", "type": "invalid_request_error", "param": None, "code": None}
    await page.route("**/v1/collections", lambda route: route.fulfill(status=400, json={"error": error}))
    await page.get_by_role("button", name="Search", exact=True).click()
    await expect(page.get_by_role("alert")).to_contain_text("no room")
