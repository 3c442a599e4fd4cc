"""The page Score."""

from __future__ import annotations

import asyncio
import csv
from contextlib import suppress
from io import StringIO
from pathlib import Path

from playwright.async_api import Error, Page, expect

from tests.support.browser import PHONE, Guard, Visit, sideways_scroll, wait_until_kept

FILE = """Question;A;B;Answer\r
What is the capital of France?;The capital of France is Rome.;The capital of France is Paris.;B\r
"What is the capital\nof ""Italy""?";The capital of Italy is Rome.;The capital of Italy is Oslo.;1\r
\r
<script>window.ran = true</script>;a;b;c\r
What is 2 plus 3?;4;5;5\r
only a question\r
"""


async def probabilities(page: Page) -> list[float]:
    texts = await page.locator(".bars .bar-head .number").all_text_contents()
    return [float(text.strip("<>% \u00a0").replace("\u202f", "")) for text in texts]


async def test_choices_are_compared_and_a_change_scores_them_anew(visit: Visit) -> None:
    page = await visit("/#/score")
    await expect(page.get_by_role("button", name="Score", exact=True)).to_be_disabled()
    await page.get_by_role("textbox", name="Question").fill("What is the capital of France?")
    first = page.get_by_role("textbox", name="Choice 1")
    await first.focus()
    lines = "The capital of France is Rome.\n\nThe capital of France is Paris.\n<b>Lima</b>"
    await first.evaluate(
        """(field, lines) => {
            const data = new DataTransfer();
            data.setData("text", lines);
            field.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true}));
        }""",
        lines,
    )
    await expect(page.get_by_role("textbox", name="Choice 3")).to_have_value("<b>Lima</b>")
    await page.get_by_role("button", name="Remove choice 3").click()
    await page.get_by_role("button", name="Add a choice").click()
    await expect(page.get_by_role("textbox", name="Choice 3")).to_be_focused()
    await page.keyboard.type("<b>Lima</b>")
    await page.keyboard.press("Enter")
    bars = page.get_by_role("list", name="How likely each choice is").get_by_role("listitem")
    await expect(bars).to_have_count(3)
    await expect(bars.nth(1)).to_contain_text("best")
    await expect(bars.nth(2)).to_contain_text("<b>Lima</b>")
    plain = await probabilities(page)
    assert abs(sum(plain) - 100) < 0.3
    await bars.nth(1).locator("summary").click()
    tokens = bars.nth(1).get_by_role("row", name="Token")
    pieces = ["␣The", "␣capital", "␣of", "␣France", "␣is", "␣Paris", "."]
    await expect(tokens.locator("td")).to_have_text(pieces)
    await page.get_by_role("combobox", name="Compare by").select_option("total")
    await expect(bars.nth(1).locator(".bar-head .number")).to_have_text(">99.9 %")
    await page.get_by_role("checkbox", name="Calibrated").check()
    await expect(bars.nth(1).get_by_role("row", name="without it")).to_be_visible()
    await wait_until_kept(page, "score", '"calibrate":true')
    await page.reload()
    await expect(page.get_by_role("textbox", name="Choice 3")).to_have_value("<b>Lima</b>")
    await expect(page.get_by_role("checkbox", name="Calibrated")).to_be_checked()


async def test_a_table_gives_accuracy_wrong_rows_and_a_file(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "questions.csv"
    path.write_bytes(FILE.encode())
    page = await visit("/#/score/table")
    await page.locator("input[type=file]").set_input_files(path)
    problems = page.get_by_role("alert")
    await expect(problems).to_contain_text("Rows that are left out: 2")
    await expect(problems).to_contain_text("Line 6: the answer “c” is none of the 2 choices")
    await expect(problems).to_contain_text("Line 8: a question, two choices and an answer are needed; there are 0")
    await page.get_by_role("button", name="Score 3 questions").click()
    rows = page.get_by_role("table").get_by_role("row")
    await expect(rows).to_have_count(4)
    await expect(rows.nth(1)).to_contain_text("right The capital of France is Paris.")
    async with page.expect_download() as waiting:
        await page.get_by_role("button", name="Download as CSV").click()
    found = list(csv.DictReader(StringIO(Path(await (await waiting.value).path()).read_text())))
    assert [row["line"] for row in found] == ["2", "3", "7"]
    assert found[1]["question"] == 'What is the capital\nof "Italy"?'
    assert [row["answer"] for row in found][2] == "5"
    right = sum(row["right"] == "1" for row in found)
    await expect(page.get_by_text(f"{right} of 3 right")).to_be_visible()
    await page.get_by_role("checkbox", name="Only wrong ones").check()
    await expect(rows).to_have_count(4 - right)
    assert await page.evaluate("window.ran") is None


async def test_a_run_is_stopped_goes_on_and_outlives_a_server_that_fails(visit: Visit, guard: Guard) -> None:
    guard.allow("Failed to load resource|ERR_FAILED")
    page = await visit("/#/score/table", viewport=PHONE, color_scheme="dark", locale="zh-CN")
    table = "\n".join(f"What is {n} plus 1?,{n},{n + 1},{n + 1}" for n in range(9))
    await page.get_by_role("textbox", name="表格").fill(table)
    calls = 0

    async def some(route: object) -> None:
        nonlocal calls
        calls += 1
        await (route.continue_() if calls <= 4 else route.abort())  # type: ignore[attr-defined]

    await page.route("**/v1/choices", some)
    await page.get_by_role("button", name="为 9 个问题评分").click()
    await expect(page.get_by_role("alert")).to_contain_text("服务器没有响应")
    resume = page.get_by_role("button", name="继续", exact=True)
    await expect(resume).to_be_visible()
    done = await page.locator("tbody tr").count()
    assert 0 < done <= 4
    await page.unroute("**/v1/choices")
    is_stopped = asyncio.Event()

    async def wait(route: object) -> None:  # else all questions may be scored before the button is pressed
        await is_stopped.wait()
        with suppress(Error):  # the page may have given the request up
            await route.continue_()  # type: ignore[attr-defined]

    await page.route("**/v1/choices", wait)
    await resume.click()
    await page.get_by_role("button", name="停止").click()
    is_stopped.set()
    await page.unroute("**/v1/choices")
    await resume.click()
    await expect(page.locator("tbody tr")).to_have_count(9)
    assert await sideways_scroll(page) == 0
    await page.get_by_role("textbox", name="表格").fill('a,"b')
    await expect(page.get_by_text("第 1 行：引号打开后没有关闭")).to_be_visible()
