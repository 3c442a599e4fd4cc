"""The page Chat."""

from __future__ import annotations

from playwright.async_api import expect

from tests.support.browser import Visit


async def test_a_question_is_answered(visit: Visit) -> None:
    page = await visit("/#/chat")
    field = page.get_by_role("textbox", name="Message")
    await field.fill("What is 2 plus 3?")
    await field.press("Enter")
    await expect(page.get_by_role("article", name="You")).to_have_text("What is 2 plus 3?")
    await expect(page.get_by_role("article", name="Model")).to_contain_text("5")
    await expect(field).to_have_value("")


async def test_html_of_a_message_is_shown_and_not_run(visit: Visit) -> None:
    page = await visit("/#/chat")
    text = "<script>window.ran = true</script><img src=x onerror='window.ran = true'>"
    field = page.get_by_role("textbox", name="Message")
    await field.fill(text)
    await field.press("Enter")
    await expect(page.get_by_role("article", name="You")).to_have_text(text)
    rendered = await page.evaluate(
        """async (text) => {
            const {renderMarkdown} = await import("/web/components/markdown.js");
            const box = document.createElement("div");
            box.append(renderMarkdown(text + "\\n\\n[a](javascript:alert(1)) ![b](https://example.com/b.png) `c`"));
            document.body.append(box);
            return box.innerHTML;
        }""",
        text,
    )
    assert "<script" not in rendered
    assert "<img" not in rendered
    assert "javascript:" not in rendered
    assert await page.evaluate("window.ran") is None
