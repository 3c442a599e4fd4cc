"""The page Jobs."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from playwright.async_api import Locator, Page, Route, expect

from tests.support.browser import PHONE, Guard, Visit, sideways_scroll


def line(custom_id: str, body: object, url: str = "/v1/chat/completions") -> dict[str, object]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def chat(question: str, **fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": question}], "max_tokens": 12, "temperature": 0, **fields}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


async def begin(page: Page, file: Path) -> Locator:
    """Begin a batch of the requests in `file`, and return its place in the list."""
    await page.get_by_role("button", name="New batch").click()
    await page.get_by_label("File of requests (JSONL)").set_input_files(file)
    await page.get_by_role("button", name="Start", exact=True).click()
    return page.get_by_role("listitem", name=file.name)


async def test_a_file_is_run_and_its_results_are_read_and_saved(visit: Visit, tmp_path: Path) -> None:
    file = write(
        tmp_path / "questions.jsonl",
        line("capital", chat("What is the capital of France?")),
        line("markup", chat("<script>window.ran = true</script>")),
        line("fails", chat("Hello", state="missing")),
    )
    page = await visit("/#/jobs")
    batch = await begin(page, file)
    await expect(batch).to_contain_text("completed")
    await expect(batch).to_contain_text("2 of 3 answered")
    await expect(batch).to_contain_text("1 failed")
    await batch.get_by_role("button", name="Results of questions.jsonl").click()
    dialog = page.get_by_role("dialog", name="Results")
    results = dialog.get_by_role("list", name="Results").get_by_role("listitem")
    await expect(results).to_have_count(3)
    await expect(results.first).to_contain_text("state 'missing' does not exist")
    await expect(results.filter(has_text="What is the capital of France?")).to_contain_text("Paris")
    await expect(results.filter(has_text="window.ran")).to_contain_text("<script>")
    assert not await page.evaluate("'ran' in window")
    async with page.expect_download() as waiting:
        await dialog.get_by_role("button", name="Save the answers (2)").click()
    saved = Path(await (await waiting.value).path()).read_text()
    assert {json.loads(each)["custom_id"] for each in saved.splitlines()} == {"capital", "markup"}


async def test_wrong_lines_are_listed_with_their_numbers(visit: Visit, guard: Guard, tmp_path: Path) -> None:
    page = await visit("/#/jobs")
    wrong = write(tmp_path / "wrong.jsonl", line("a", chat("Hello")), line("a", chat("Hello")), line("b", {}))
    batch = await begin(page, wrong)
    await expect(batch).to_contain_text("can’t be run")
    await expect(batch.get_by_role("alert").get_by_role("listitem")).to_have_count(2)
    await expect(batch.get_by_role("alert")).to_contain_text("Line 2: custom_id: 'a' is not allowed")
    await expect(batch.get_by_role("alert")).to_contain_text("Line 3: body: messages")
    await page.get_by_role("button", name="New batch").click()
    text = tmp_path / "text.jsonl"
    text.write_text("Hello\n")
    await page.get_by_label("File of requests (JSONL)").set_input_files(text)
    await page.get_by_role("button", name="Start", exact=True).click()
    await expect(page.get_by_text("The first line of “text.jsonl” is no request with a url.")).to_be_visible()


async def test_a_batch_shows_its_progress_and_is_cancelled_on_a_phone_in_chinese(visit: Visit, tmp_path: Path) -> None:
    endless = {"prompt": "The sea", "max_tokens": 100_000, "ignore_eos": True}
    file = write(
        tmp_path / "a-rather-long-name-of-a-file-with-many-requests.jsonl",
        *(line(str(number), endless, "/v1/completions") for number in range(20)),
    )
    page = await visit("/#/jobs", viewport=PHONE, color_scheme="dark", locale="zh-CN")
    await page.get_by_role("button", name="新建批处理").click()
    await page.get_by_label("请求文件（JSONL）").set_input_files(file)
    assert await sideways_scroll(page) == 0
    await page.get_by_role("button", name="开始", exact=True).click()
    batch = page.get_by_role("listitem", name=file.name)
    await expect(batch).to_contain_text("运行中")
    await expect(batch).to_contain_text("已回答 0 / 20")
    await expect(batch.get_by_role("progressbar", name="已完成的请求")).to_have_attribute("max", "20")
    assert await sideways_scroll(page) == 0
    await batch.get_by_role("button", name="取消").click()
    await expect(batch).to_contain_text("已取消")


async def test_the_time_left_is_shown(visit: Visit) -> None:
    page = await visit()
    batch = {
        "id": "batch_1",
        "endpoint": "/v1/completions",
        "status": "in_progress",
        "input_file_id": "file-1",
        "output_file_id": None,
        "error_file_id": None,
        "errors": None,
        "created_at": 1_700_000_000,
        "estimated_finish": 4_000_000_000,
        "request_counts": {"total": 100, "completed": 20, "failed": 5},
        "usage": {"total_tokens": 7},
    }
    answer = {"data": [batch, {**batch, "id": "batch_2", "estimated_finish": None}], "has_more": False}
    await page.route("**/v1/batches?*", lambda route: route.fulfill(json=answer))
    await page.goto(f"{page.url.partition('#')[0]}#/jobs")
    items = page.get_by_role("listitem", name="file-1")
    await expect(items.first).to_contain_text(re.compile(r"20 of 100 answered.*about [\d,]+ days left"))
    await expect(items.last).to_contain_text("20 of 100 answered")
    await expect(items.last).not_to_contain_text("left")


async def test_answers_of_every_endpoint_have_a_text(visit: Visit) -> None:
    page = await visit("/#/jobs")

    async def texts(endpoint: str, request: object, answer: object) -> Any:  # noqa: ANN401
        return await page.evaluate(
            """async ([endpoint, request, body]) => {
                const {answerText, questionText} = await import("/web/pages/jobs/texts.js");
                return [questionText(request), answerText(endpoint, {response: {status_code: 200, body}, error: null})];
            }""",
            [endpoint, request, answer],
        )

    part = {"type": "text", "text": "Hi"}
    assert await texts("/v1/completions", {"prompt": ["a", "b"]}, {"choices": [{"text": "c"}, {"text": "d"}]}) == [
        "a\nb",
        "c\nd",
    ]
    chat = {"choices": [{"message": {"content": "Hello"}}]}
    assert await texts("/v1/chat/completions", {"messages": [{"content": [part]}]}, chat) == ["Hi", "Hello"]
    message = {"type": "message", "content": [{"type": "output_text", "text": "Yes"}]}
    assert await texts("/v1/responses", {"input": "Is it?"}, {"output": [message]}) == ["Is it?", "Yes"]
    vectors = {"data": [{"embedding": [0.5, 1]}, {"embedding": [0, 1]}]}
    assert await texts("/v1/embeddings", {"input": ["a"]}, vectors) == ["a", "2 vectors of 2 numbers"]
    ranked = {"results": [{"index": 0}]}
    assert await texts("/v1/rerank", {"query": "q"}, ranked) == ["q", json.dumps(ranked, separators=(",", ":"))]


async def test_files_are_saved_and_deleted(visit: Visit, tmp_path: Path) -> None:
    page = await visit("/#/jobs/batches")
    file = write(tmp_path / "to-delete.jsonl", line("one", chat("Hello")))
    await expect(await begin(page, file)).to_contain_text("completed")
    await page.get_by_role("link", name="Files").click()
    row = page.get_by_role("row", name="to-delete.jsonl")
    await expect(row).to_contain_text("requests")
    async with page.expect_download() as waiting:
        await row.get_by_role("button", name="Save to-delete.jsonl").click()
    assert Path(await (await waiting.value).path()).read_bytes() == file.read_bytes()
    await row.get_by_role("button", name="Delete to-delete.jsonl").click()
    await expect(row).to_have_count(0)


async def test_a_refusal_is_shown(visit: Visit, guard: Guard) -> None:
    guard.allow("Failed to load resource")
    page = await visit()
    error = {"message": "the disk is full", "type": "server_error", "param": None, "code": None}
    asked = asyncio.Event()

    async def refuse(route: Route) -> None:
        asked.set()
        await route.fulfill(status=507, json={"error": error})

    await page.route("**/v1/batches?*", refuse)
    await page.get_by_role("link", name="Jobs").click()
    await asked.wait()
    await expect(page.get_by_role("alert")).to_contain_text("the disk is full")
