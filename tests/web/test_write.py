"""The page Write."""

from __future__ import annotations

import re

from playwright.async_api import Locator, Page, expect

from tests.support.browser import PHONE, Guard, Visit, sideways_scroll, wait_until_kept

QUESTION = "User: What is the capital of France?\n\nAssistant:"
ANSWER = " The capital of France is Paris."


async def write_on(page: Page, text: str = QUESTION) -> None:
    """Write a text, and let the model continue it to its end with the likeliest tokens."""
    await page.get_by_role("textbox", name="Text").fill(text)
    await page.get_by_role("group").filter(has_text="Sampling").locator("summary").click()
    await page.get_by_role("spinbutton", name="Temperature").fill("0")
    await page.get_by_role("textbox", name="Text").press("Control+Enter")
    await expect(page.locator(".write-facts")).to_contain_text("the model ended the text")


def branches(page: Page) -> Locator:
    return page.get_by_role("list", name="Branches").get_by_role("listitem")


async def forked(page: Page) -> None:
    """Wait until a third text is there, and has come to its end."""
    await expect(branches(page)).to_have_count(3)
    await expect(page.get_by_role("button", name="Continue", exact=True)).to_be_visible()
    await expect(page.locator(".write-facts")).to_contain_text("ended")


async def test_a_text_goes_on_and_is_forked_where_another_token_is_clicked(visit: Visit) -> None:
    page = await visit("/#/write")
    field = page.get_by_role("textbox", name="Text")
    await write_on(page)
    await expect(field).to_have_value(f"{QUESTION}{ANSWER}\n\n")
    await expect(page.locator(".write-facts")).to_contain_text("perplexity")
    await expect(page.locator(".write-facts")).to_contain_text("prompt tokens reused")
    assert await page.locator(".editor .token").all_text_contents() == [
        *(" The", " capital", " of", " France", " is", " Paris", "."),
        "\n\n",
    ]
    box = await page.locator(".editor .token", has_text="Paris").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    popover = page.locator(".popover")
    await expect(popover.get_by_role("button", name="is in the text")).to_have_count(1)
    other = popover.get_by_role("button", name="use it and continue").first
    name = (await other.locator(".token-name").text_content() or "").replace("␣", " ")
    await other.click()
    await forked(page)
    fork = await field.input_value()
    assert fork.startswith(f"{QUESTION} The capital of France is{name}")
    await page.get_by_role("button", name="Back").click()
    await expect(field).to_have_value(f"{QUESTION}{ANSWER}\n\n")
    await branches(page).nth(2).get_by_role("button").first.click()
    await expect(field).to_have_value(fork)
    await wait_until_kept(page, "write", '"current":2')
    await page.reload()
    await expect(field).to_have_value(fork)
    await expect(branches(page)).to_have_count(3)


async def test_the_caret_shows_alternatives_and_the_keyboard_takes_one(visit: Visit) -> None:
    page = await visit("/#/write")
    field = page.get_by_role("textbox", name="Text")
    await write_on(page)
    await page.get_by_role("button", name="Show probabilities").click()
    await expect(page.locator(".write-facts")).to_contain_text("over 19 tokens")
    await field.press("Control+Home")
    for _ in range(6):
        await field.press("ArrowRight")
    panel = page.get_by_role("region", name="Token")
    await expect(panel.locator(".alternatives-head")).to_contain_text("␣What")
    await expect(panel.get_by_role("list", name="In place of ␣What")).to_be_visible()
    await panel.get_by_role("button", name="use it and continue").first.press("Enter")
    await forked(page)
    value = await field.input_value()
    assert value.startswith("User:")
    assert not value.startswith("User: What is")
    await field.press("Control+End")
    await field.press_sequentially(" and more")
    assert (await field.input_value()).endswith(" and more")


async def test_a_newer_page_in_another_window_may_open_the_storage(visit: Visit) -> None:
    page = await visit("/#/write")
    field = page.get_by_role("textbox", name="Text")
    await field.fill("It is kept.")
    await wait_until_kept(page, "write", "It is kept.")
    await page.evaluate(
        """() => new Promise((resolve, reject) => {
            const request = indexedDB.open("rnn-engine", 99);
            request.onsuccess = () => resolve();
            request.onblocked = () => reject(new Error("blocked"));
        })"""
    )
    await field.fill("It is there.")
    await expect(page.get_by_role("list", name="Branches")).to_contain_text("It is there.")


async def test_tokens_keep_their_places_in_a_text_that_is_edited_and_forked(visit: Visit) -> None:
    page = await visit("/#/write")
    found = await page.evaluate(
        """async () => {
            const module = await import("/web/pages/write/text.js");
            const {EMPTY, begun, cutAt, edited, extended, forked, promptOf, seenBy} = module;
            const token = (id, ...bytes) => ({id, bytes, logprob: -1, top: []});
            const drawn = [token(1, 0xe6, 0x9c), token(2, 0xac), token(3, 0x21)];
            const text = extended(begun({...EMPTY, content: "日"}, "g", "m"), drawn);
            const fork = forked(text, 0, 1, token(9, 0xab));
            const written = edited(text, "日本?");
            return {
                content: [text.content, fork.content, cutAt(text, 2).content],
                cells: text.cells.map(({start, end, tokens}) => [start, end, tokens.length]),
                kept: [written.cells.length, written.run, seenBy(text, "n").cells.length, seenBy(text, "m") === text],
                prompts: [text, fork, begun(text, "h", "m"), begun(written, "g", "m"), cutAt(text, 1)].map(promptOf),
            };
        }"""
    )
    assert found == {
        "content": ["日本!", "日末", "日本"],
        "cells": [[1, 2, 2], [2, 3, 1]],
        "kept": [1, None, 0, True],
        "prompts": [
            {"prompt": ["日", 1, 2, 3], "prefix": 3},
            {"prompt": ["日", 1, 9], "prefix": 2},
            {"prompt": ["日", 1, 2, 3], "prefix": 0},
            {"prompt": "日本?", "prefix": 0},
            {"prompt": "日", "prefix": 0},
        ],
    }


async def test_what_is_wrong_with_a_constraint_is_marked_in_its_place(visit: Visit, guard: Guard) -> None:
    guard.allow("400")
    page = await visit("/#/write")
    await page.get_by_role("group").filter(has_text="Constraint").locator("summary").click()
    kind = page.get_by_role("combobox", name="The continuation follows")
    for value, name, text, place, marked in (
        ("grammar", "GBNF or Lark grammar", 'root ::= "a" |\n  thing', "Line 2, column 3", "thing"),
        ("kbnf", "BNF grammar (kbnf)", "start ::= thing;", "Line 1, column 11", "thing"),
        ("regex", "Regular expression", "é(a", "Line 1, column 2", "("),
        ("json", "JSON schema", '{"type": "object",\n "x": tru}', "Line 2, column 7", "tru"),
    ):
        await kind.select_option(value)
        box = page.get_by_role("textbox", name=name)
        await box.fill(text)
        await expect(page.get_by_role("alert")).to_contain_text(place)
        await expect(page.locator(".code-field mark")).to_have_text(marked)
        await expect(box).to_have_attribute("aria-invalid", "true")
        await box.fill("")
        async with page.expect_response("**/completion") as answer:
            await page.get_by_role("button", name="Insert an example").click()
        assert (await answer.value).ok
        await expect(page.get_by_role("alert")).to_have_count(0)
        await expect(box).not_to_have_attribute("aria-invalid", "true")


async def test_a_constrained_text_stays_one_when_it_is_forked(visit: Visit) -> None:
    page = await visit("/#/write")
    field = page.get_by_role("textbox", name="Text")
    await page.get_by_role("group").filter(has_text="Constraint").locator("summary").click()
    await page.get_by_role("combobox", name="The continuation follows").select_option("regex")
    await page.get_by_role("textbox", name="Regular expression").fill("[0-9]{4}-[0-9]{2}")
    await field.fill("Date: ")
    await page.get_by_role("button", name="Continue", exact=True).click()
    await expect(page.locator(".write-facts")).to_contain_text("the model ended the text")
    first = await field.input_value()
    await field.press("Control+End")
    for _ in range(4):
        await field.press("ArrowLeft")
    panel = page.get_by_role("region", name="Token")
    await expect(panel.locator(".alternatives-head .token-name")).to_have_text(first[-4])
    digit = panel.get_by_role("button", name="use it and continue").filter(
        has=page.locator(".token-name", has_text=re.compile("^[0-9]$"))
    )
    await digit.first.click()
    await forked(page)
    await expect(field).not_to_have_value(first)
    assert await field.evaluate("field => /^Date: [0-9]{4}-[0-9]{2}$/.test(field.value)")


async def test_html_in_a_text_is_text_and_a_failure_loses_nothing(visit: Visit, guard: Guard) -> None:
    guard.allow("Failed to load resource|ERR_FAILED")
    page = await visit("/#/write", viewport=PHONE, color_scheme="dark", locale="zh-CN")
    text = "<script>window.ran = true</script><img src=x onerror='window.ran = true'>"
    field = page.get_by_role("textbox", name="文本")
    await field.fill(text)
    await page.route("**/completion", lambda route: route.abort())
    await page.get_by_role("button", name="续写", exact=True).click()
    await expect(page.get_by_role("alert")).to_contain_text("服务器没有响应")
    await expect(field).to_have_value(text)
    await page.unroute("**/completion")
    await page.get_by_role("alert").get_by_role("button", name="关闭").click()
    await page.get_by_role("button", name="显示概率").click()
    await expect(page.locator(".editor .token").first).to_be_attached()
    assert await page.locator(".overlay-behind").evaluate("e => e.querySelectorAll('script, img').length") == 0
    assert await page.evaluate("window.ran") is None
    assert await sideways_scroll(page) == 0
