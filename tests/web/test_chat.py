"""The page Chat, with the demo model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from tests.support.browser import PHONE, Guard, Visit, call, sideways_scroll

CAPITAL = "What is the capital of France?"
WHOLE = "prompt tokens from the cache"  # under each answer that has ended


def questions(page: Page) -> Locator:
    return page.get_by_role("article", name="You")


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Model")


async def ask(page: Page, text: str) -> Locator:
    """Send a message, wait until its answer has ended, and return it."""
    before = await answers(page).count()
    field = page.get_by_role("textbox", name="Message")
    await field.fill(text)
    await field.press("Enter")
    answer = answers(page).nth(before)
    await whole(page, answer)
    return answer


async def whole(page: Page, answer: Locator) -> None:
    """Wait until an answer has ended, and the page takes the next message: its last event comes after its figures."""
    await expect(answer).to_contain_text(WHOLE)
    await expect(page.get_by_role("button", name="Stop (Escape)")).to_have_count(0)


async def choose_exact(page: Page) -> None:
    """Let the model always take the likeliest token."""
    await page.get_by_role("button", name="Settings").click()
    await page.get_by_label("Preset", exact=True).select_option("exact")


async def test_a_model_for_vectors_offers_to_search(visit: Visit) -> None:
    page = await visit()
    await expect(page.get_by_role("button", name="Ask the model")).to_be_visible()
    embedding = {"width": 96, "tasks": ["retrieval"], "reranker": None}
    entry = {"id": "vectors", "meta": {"embedding": embedding}}
    await page.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": [entry]}))
    await page.reload()
    await expect(page.get_by_role("heading", name="This model does not chat")).to_be_visible()
    await expect(page.get_by_role("button", name="Ask the model")).to_have_count(0)
    await page.get_by_role("main").get_by_role("link", name="Search").click()
    await expect(page.get_by_role("textbox", name="Query")).to_be_visible()


async def test_an_example_is_answered_and_found_again(visit: Visit) -> None:
    page = await visit()
    await page.get_by_role("button", name="Ask the model").click()
    await expect(questions(page)).to_contain_text(CAPITAL)
    await expect(answers(page)).to_contain_text("Paris")
    await expect(answers(page)).to_contain_text(WHOLE)
    await expect(answers(page)).to_contain_text("first token after")
    await expect(page.get_by_role("status").filter(has_text="Paris")).to_have_count(1)
    await page.reload()
    await expect(answers(page)).to_contain_text("Paris")
    await page.get_by_role("button", name="New conversation").click()
    await expect(page.get_by_role("button", name="Ask the model")).to_be_visible()
    await page.get_by_role("link", name=CAPITAL).click()
    await expect(answers(page)).to_contain_text("Paris")


async def test_a_state_changes_who_answers(visit: Visit) -> None:
    page = await visit()
    await page.get_by_role("button", name="from the state “pirate”").click()
    await expect(answers(page)).to_contain_text("Arr!")
    await expect(page.get_by_label("Initial state")).to_have_value("pirate")
    await expect(answers(page)).to_contain_text(WHOLE)
    await page.get_by_label("Initial state").select_option("")
    await page.get_by_role("button", name="Another answer").click()
    await expect(answers(page)).to_contain_text("2 / 2")
    await expect(answers(page)).to_contain_text("The capital of France is Paris.")
    await expect(answers(page)).not_to_contain_text("Arr!")


async def test_a_message_is_edited_and_both_versions_stay(visit: Visit) -> None:
    page = await visit()
    await choose_exact(page)
    await ask(page, "What is 2 + 3?")
    await ask(page, "Spell the word cat")
    first = questions(page).first
    await first.get_by_role("button", name="Edit").click()
    await page.get_by_role("textbox", name="Edit").fill("What is 4 + 4?")
    await page.get_by_role("article").get_by_role("button", name="Send").click()
    await expect(answers(page)).to_have_count(1)
    await expect(answers(page)).to_contain_text("8")
    await expect(answers(page)).to_contain_text(WHOLE)
    await first.get_by_role("button", name="Version before").click()
    await expect(answers(page)).to_have_count(2)
    await expect(answers(page).first).to_contain_text("5")
    await answers(page).first.get_by_role("button", name="Continue from here").click()
    await expect(questions(page)).to_have_count(1)
    await page.get_by_role("button", name="Back to what followed").click()
    await expect(questions(page)).to_have_count(2)
    await answers(page).first.get_by_role("button", name="Continue from here").click()
    await expect(questions(page)).to_have_count(1)
    await ask(page, "What is 1 + 1?")
    await expect(questions(page).nth(1)).to_contain_text("2 / 2")
    await answers(page).nth(1).get_by_role("button", name="Edit").click()
    await page.get_by_role("textbox", name="Edit").fill("**eleven**")
    await page.get_by_role("button", name="Save as a new version").click()
    await expect(answers(page).nth(1).locator("strong")).to_have_text("eleven")
    await expect(answers(page).nth(1)).to_contain_text("2 / 2")


async def tab_to(page: Page, name: str) -> None:
    """Press Shift+Tab until a control with that name has the focus."""
    for _ in range(40):
        if await page.evaluate("document.activeElement.getAttribute('aria-label')") == name:
            return
        await page.keyboard.press("Shift+Tab")
    pytest.fail(f"Shift+Tab does not reach {name}")


async def test_a_chat_with_an_edit_needs_no_mouse(visit: Visit) -> None:
    page = await visit()
    field = page.get_by_role("textbox", name="Message")
    await expect(field).to_be_focused()
    await page.keyboard.type("What is 2 + 3?")
    await page.keyboard.press("Enter")
    await whole(page, answers(page))
    await tab_to(page, "Another answer")
    await tab_to(page, "Copy")
    await page.keyboard.press("Shift+Tab")
    await tab_to(page, "Edit")
    await page.keyboard.press("Enter")
    editor = questions(page).get_by_role("textbox", name="Edit")
    await expect(editor).to_be_focused()
    await page.keyboard.type(" Is it")
    await page.keyboard.press("Escape")
    await expect(questions(page).locator(".message-text")).to_have_text("What is 2 + 3?")
    await expect(questions(page).get_by_role("button", name="Edit")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(editor).to_be_focused()
    await page.keyboard.type(" Or")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("more?")
    await expect(editor).to_have_value("What is 2 + 3? Or\nmore?")
    await page.keyboard.press("Enter")
    await expect(questions(page)).to_contain_text("2 / 2")
    await expect(questions(page).locator(".message-text")).to_have_text("What is 2 + 3? Or\nmore?")
    await whole(page, answers(page))
    await expect(field).to_be_focused()
    await page.keyboard.type("Thanks")
    await page.keyboard.press("Control+Enter")
    await expect(questions(page)).to_have_count(2)
    await expect(answers(page).nth(1)).to_contain_text(WHOLE)


async def test_keys_of_an_input_method_neither_send_nor_cancel(visit: Visit) -> None:
    page = await visit()
    await ask(page, "What is 2 + 3?")
    field = page.get_by_role("textbox", name="Message")
    await field.fill("ni hao")
    await questions(page).get_by_role("button", name="Edit").click()
    editor = questions(page).get_by_role("textbox", name="Edit")
    for area in (field, editor):
        for key in ("Enter", "Escape"):
            for composing in ({"keyCode": 229}, {"isComposing": True}):  # as in Safari, and in others
                await area.dispatch_event("keydown", {"key": key, "bubbles": True, "cancelable": True, **composing})
    await expect(field).to_have_value("ni hao")
    await expect(editor).to_have_value("What is 2 + 3?")
    await expect(questions(page)).to_have_count(1)


async def test_an_edit_waits_until_a_running_answer_has_ended(visit: Visit) -> None:
    page = await visit()
    await ask(page, "What is 2 + 3?")
    await questions(page).get_by_role("button", name="Edit").click()
    editor = questions(page).first.get_by_role("textbox", name="Edit")
    await editor.fill("What is 4 + 4?")
    await page.evaluate(READS_FOR_EVER)
    await page.get_by_role("textbox", name="Message").fill("Hello")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Stop (Escape)")).to_be_visible()
    await editor.press("Enter")
    await expect(editor).to_have_value("What is 4 + 4?")
    await editor.press("Escape")
    await expect(editor).to_have_count(0)
    await expect(page.get_by_role("button", name="Stop (Escape)")).to_be_visible()


async def test_a_branch_goes_on_from_the_state_that_is_kept(visit: Visit) -> None:
    page = await visit()
    await ask(page, "My name is Zoe.")
    await ask(page, "Tell me a joke")
    await answers(page).first.get_by_role("button", name="Continue from here").click()
    await expect(questions(page)).to_have_count(1)
    answer = await ask(page, "What is my name?")
    saved, total = (await answer.locator(".stats span").nth(2).inner_text()).split(" prompt")[0].split(" of ")
    assert 0 < int(saved) < int(total)


READS_FOR_EVER = """() => {
    const real = fetch;
    window.fetch = async (path, {signal, ...options}) => {
        if (!path.includes("chat/completions")) return real(path, {signal, ...options});
        const event = {choices: [], prompt_progress: {total: 9, cache: 0, processed: 5, time_ms: 1}};
        return new Response(new ReadableStream({start(stream) {
            stream.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(event)}\\n\\n`));
            signal.addEventListener("abort", () => stream.error(signal.reason));
        }}));
    };
}"""


async def test_an_answer_is_stopped_and_continued(visit: Visit) -> None:
    page = await visit()
    await page.get_by_role("button", name="Settings").click()
    await page.get_by_label("Maximum new tokens").first.fill("3")
    answer = await ask(page, CAPITAL)
    await expect(answer).to_contain_text("ended at the token limit")
    await expect(answer).not_to_contain_text("Paris")
    await answer.get_by_role("button", name="Continue the answer").click()
    await expect(answer).to_contain_text("France is Paris")
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await page.evaluate(READS_FOR_EVER)
    await page.get_by_role("textbox", name="Message").fill("Hello")
    await page.keyboard.press("Enter")
    await expect(answers(page).nth(1)).to_contain_text("Reads 5 of 9 tokens")
    await expect(page.get_by_role("button", name="Stop (Escape)")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(answers(page).nth(1)).to_contain_text("stopped")
    await expect(page.get_by_role("button", name="Send")).to_be_visible()


async def test_what_came_before_a_stream_broke_is_kept(visit: Visit, guard: Guard) -> None:
    guard.allow("Failed to load resource")
    page = await visit()
    await page.evaluate(
        """() => {
            const real = fetch;
            window.fetch = async (path, options) => {
                if (!path.includes("chat/completions")) return real(path, options);
                window.fetch = real;
                const event = {choices: [{delta: {content: "It is"}, finish_reason: null}]};
                return new Response(`data: ${JSON.stringify(event)}\\n\\n`);
            };
        }"""
    )
    field = page.get_by_role("textbox", name="Message")
    await field.fill(CAPITAL)
    await field.press("Enter")
    await expect(answers(page)).to_contain_text("It is")
    await expect(answers(page).get_by_role("alert")).to_contain_text("The connection broke before the end.")
    await page.get_by_role("button", name="Try again").click()
    await expect(answers(page)).to_contain_text("Paris")
    await expect(answers(page)).to_contain_text("2 / 2")


async def test_what_the_server_refuses_is_told_in_place(visit: Visit, guard: Guard) -> None:
    guard.allow("400")
    page = await visit()
    await page.get_by_role("button", name="Settings").click()
    await page.get_by_label("Temperature").first.fill("500")
    field = page.get_by_role("textbox", name="Message")
    await field.fill("Hello")
    await field.press("Enter")
    await expect(answers(page).get_by_role("alert")).to_contain_text("temperature: 500.0 is not allowed")
    await page.get_by_label("Preset", exact=True).select_option("exact")
    await page.get_by_role("button", name="Try again").click()
    await expect(answers(page)).to_contain_text(WHOLE)


async def test_a_tool_is_called_and_its_result_read(visit: Visit) -> None:
    page = await visit()
    await page.get_by_role("button", name="A tool that the model may call").click()
    await expect(answers(page)).to_contain_text("Calls get_weather")
    await expect(answers(page)).to_contain_text('"city": "Paris"')
    await page.get_by_label("Result of get_weather").fill("sunny, 21 degrees")
    await page.get_by_role("button", name="Send the result").click()
    await expect(page.get_by_role("article", name="Result of a tool")).to_contain_text("sunny")
    await expect(answers(page).nth(1)).to_contain_text("The weather in Paris")


async def test_settings_and_presets(visit: Visit) -> None:
    page = await visit()
    await page.get_by_role("button", name="Settings").click()
    preset = page.get_by_label("Preset", exact=True)
    await expect(preset).to_have_value("standard")
    await preset.select_option("lively")
    await expect(page.get_by_label("Temperature").first).to_have_value("1.2")
    await page.get_by_label("Top k").first.fill("7")
    await expect(preset).to_have_value("custom")
    await page.get_by_role("button", name="Save").click()
    await page.get_by_label("Name of the preset").fill("seven")
    await page.get_by_role("button", name="Save").click()
    await expect(preset).to_have_value("own:seven")
    await page.get_by_label("System text").fill("You are brief.")
    async with page.expect_request("**/chat/completions") as sent:
        await ask(page, "Hello")
    body = json.loads((await sent.value).post_data or "")
    assert body["messages"][0] == {"role": "system", "content": "You are brief."}
    assert (body["temperature"], body["top_k"], "penalty_decay" in body) == (1.2, 7, False)
    await page.get_by_text("Tools", exact=True).click()
    await page.get_by_label("A JSON list of functions").fill("{")
    await expect(page.get_by_role("alert")).to_contain_text("This is not a JSON list")


async def test_no_number_in_the_settings_is_cut_off(visit: Visit) -> None:
    page = await visit()
    await page.get_by_role("button", name="Settings").click()
    await page.get_by_text("More samplers").click()
    numbers = page.locator(".number-field input[type=number]")
    assert await numbers.count() > 15
    widths = await numbers.evaluate_all("(fields) => fields.map((field) => field.scrollWidth - field.clientWidth)")
    assert max(widths) == 0


async def test_a_deleted_conversation_stays_deleted_when_the_page_is_left_at_once(visit: Visit) -> None:
    page = await visit()
    await ask(page, CAPITAL)
    await page.evaluate(
        """async () => {
            const {readRecords} = await import("/web/storage.js");
            const wait = () => new Promise((resolve) => setTimeout(resolve, 20));
            while ((await readRecords("conversations")).length === 0) await wait();
            const opened = indexedDB.open("rnn-engine");
            await new Promise((resolve) => { opened.onsuccess = resolve; });
            const table = opened.result.transaction("conversations", "readwrite").objectStore("conversations");
            const hold = () => { table.count().onsuccess = hold; }; // nothing else is written while this goes on
            hold();
        }"""
    )
    await page.get_by_role("button", name="More for").click()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Delete for good").click()
    await expect(page.get_by_role("link", name=CAPITAL)).to_have_count(0)
    await page.reload()
    await expect(page.get_by_role("button", name="Ask the model")).to_be_visible()
    await expect(page.get_by_role("link", name=CAPITAL)).to_have_count(0)


async def test_conversations_are_renamed_exported_imported_and_deleted(
    visit: Visit, guard: Guard, tmp_path: Path
) -> None:
    page = await visit()
    await ask(page, CAPITAL)
    more = page.get_by_role("button", name="More for")
    await more.click()
    await page.get_by_label("Title").fill("Cities")
    await page.get_by_role("button", name="Rename").click()
    await expect(page.get_by_role("link", name="Cities")).to_be_visible()
    await more.click()
    async with page.expect_download() as download:
        await page.get_by_role("button", name="As markdown").click()
    await (await download.value).save_as(tmp_path / "it.md")
    assert (tmp_path / "it.md").read_text().startswith(f"# Cities\n\n## You\n\n{CAPITAL}\n\n## Model\n\n")
    async with page.expect_download() as download:
        await page.get_by_role("button", name="As JSON").click()
    await (await download.value).save_as(tmp_path / "it.json")
    assert (await download.value).suggested_filename == "Cities.json"
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Delete for good").click()
    await expect(page.get_by_role("link", name="Cities")).to_have_count(0)
    await page.reload()
    await expect(page.get_by_role("button", name="Ask the model")).to_be_visible()
    await expect(page.get_by_role("link", name="Cities")).to_have_count(0)
    await page.get_by_label("Import").first.set_input_files(tmp_path / "it.json")
    await expect(page.get_by_role("link", name="Cities")).to_be_visible()
    await expect(answers(page)).to_contain_text("Paris")
    (tmp_path / "other.json").write_text('{"format": "rnn-engine conversations", "conversations": [{"title": 1}]}')
    await page.get_by_label("Import").first.set_input_files(tmp_path / "other.json")
    await expect(page.get_by_role("alert")).to_contain_text("other.json is not a file of conversations")


HTML = "<script>window.ran = true</script><img src=x onerror='window.ran = true'>"
MARKDOWN = f"""{HTML}

[bad](javascript:alert(1)) [good](https://example.com) ![image](https://example.com/i.png)

```python
print(1)
```

| a | b |
|---|--:|
| 1 | 2 |

7. seven
"""


async def test_nothing_that_is_written_is_run(visit: Visit, tmp_path: Path) -> None:
    message = {"id": "a", "parent": None, "role": "user", "content": HTML}
    answer = {"id": "b", "parent": "a", "role": "assistant", "content": MARKDOWN, "reasoning": HTML, "error": HTML}
    settings = {"state": "", "system": HTML, "tools": "", "sampling": {}}
    conversation = {"id": "c", "title": HTML, "changed": 0, "settings": settings, "messages": [message, answer]}
    whole = {"format": "rnn-engine conversations", "version": 1, "conversations": [{**conversation, "chosen": {}}]}
    (tmp_path / "it.json").write_text(json.dumps(whole))
    page = await visit()
    await page.get_by_label("Import").first.set_input_files(tmp_path / "it.json")
    await expect(questions(page).locator(".message-text")).to_have_text(HTML)
    shown = answers(page)
    await expect(shown).to_contain_text(HTML)
    await expect(shown.locator("img, script")).to_have_count(0)
    links = await shown.locator("a").evaluate_all(
        "(links) => links.map((link) => [link.getAttribute('href'), link.rel])"
    )
    safe = "noopener noreferrer"
    assert links == [[None, safe], ["https://example.com", safe], ["https://example.com/i.png", safe]]
    await expect(shown.locator("td")).to_have_text(["1", "2"])
    await expect(shown.locator("td").last).to_have_css("text-align", re.compile("right"))
    await expect(shown.locator("ol")).to_have_attribute("start", "7")
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await shown.get_by_role("button", name="Copy code").click()
    await expect(shown.get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == "print(1)\n"
    assert await page.evaluate("window.ran") is None


@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
async def test_a_phone_shows_all_of_it(visit: Visit, locale: str) -> None:
    page = await visit(viewport=PHONE, locale=locale)
    await page.locator(".example").first.click()
    await expect(page.locator("article").nth(1)).to_contain_text("Paris")
    assert await sideways_scroll(page) == 0
    for name in ("Conversations", "Settings") if locale == "en-GB" else ("对话列表", "设置"):
        await page.get_by_role("button", name=name, exact=True).click()
        await expect(page.get_by_role("dialog", name=name)).to_be_visible()
        assert await sideways_scroll(page) == 0
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
async def test_the_examples_fit_a_small_phone(visit: Visit, locale: str) -> None:
    page = await visit(viewport={"width": 360, "height": 640}, locale=locale)
    examples = page.locator(".example")
    await expect(examples).to_have_count(4)
    last, scroll = await examples.last.bounding_box(), await page.locator(".chat-scroll").bounding_box()
    assert last is not None
    assert scroll is not None
    assert last["y"] + last["height"] <= scroll["y"] + scroll["height"]


async def test_a_temporary_state_is_no_example(visit: Visit) -> None:
    page = await visit()
    await call(page, "POST", "/v1/states", {"name": "passing", "prompt": "User: Hello."})
    try:
        await page.reload()
        await expect(page.get_by_label("Initial state")).to_contain_text("passing")
        await expect(page.get_by_role("button", name="from the state “pirate”")).to_be_visible()
        await expect(page.get_by_role("button", name="from the state “passing”")).to_have_count(0)
    finally:
        await call(page, "DELETE", "/v1/states/passing")


async def test_a_conversation_of_another_browser_is_reported(visit: Visit) -> None:
    page = await visit("/#/chat/0123456789abcdef")
    await expect(page.get_by_text("This browser does not have the conversation at this address.")).to_be_visible()
    await expect(page.get_by_role("button", name="Ask the model")).to_be_visible()


async def test_two_tabs_lose_nothing(visit: Visit, guard: Guard) -> None:
    page = await visit()
    await ask(page, "What is 2 + 3?")
    other = await page.context.new_page()
    guard.watch(other)
    await other.goto(page.url)
    await expect(answers(other)).to_contain_text("5")
    await ask(page, "What is 1 + 1?")
    await expect(questions(other)).to_have_count(2)
    await ask(other, "What is 4 + 4?")
    await expect(questions(page)).to_have_count(3)
    field = page.get_by_role("textbox", name="Message")
    await field.fill("not sent yet")
    await page.get_by_role("button", name="New conversation").click()
    await expect(field).to_have_value("")
    await page.get_by_role("link", name="What is 2 + 3?").click()
    await expect(field).to_have_value("not sent yet")
    await page.get_by_role("button", name="More for").click()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Delete for good").click()
    await expect(questions(other)).to_have_count(0)
