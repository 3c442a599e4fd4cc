"""The page Tune."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from playwright.async_api import Page, Request, Route, expect

from tests.support.browser import PHONE, Guard, Visit, call, sideways_scroll, wait_until_kept

TRAINED_MS = 300_000  # two processes load the model, and the machine may be busy
JOB = "ftjob-1"
ADDRESS = f"**/v1/fine_tuning/jobs/{JOB}"


def example(question: str, answer: str) -> str:
    return json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]})


async def test_a_tuning_from_typed_examples_to_a_state_that_is_kept(visit: Visit) -> None:
    page = await visit("/#/tune")
    begin = page.get_by_role("button", name="Tune demo")
    await expect(begin).to_be_disabled()
    await page.get_by_role("button", name="Try an example").click()
    await expect(page.get_by_text("Examples: 40 (at least 10)")).to_be_visible()
    await page.get_by_role("textbox", name="Question").fill("<b>Ahoy?</b>")
    await page.get_by_role("textbox", name="Answer to learn").fill("Arr! Ahoy!")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("textbox", name="Question")).to_be_focused()
    await expect(page.get_by_role("row", name="41 <b>Ahoy?</b> Arr! Ahoy!")).to_be_visible()
    await wait_until_kept(page, "tune", "<b>Ahoy?</b>")
    for field, value in (("Epochs", "1"), ("Examples of an update", "20"), ("Learning rate multiplier", "5")):
        await page.get_by_role("spinbutton", name=field).fill(value)
    await begin.click()
    status = page.get_by_role("region", name="State of the tuning")
    await expect(status).to_contain_text("completed", timeout=TRAINED_MS)
    await expect(status).to_contain_text("demo:ft-pirate-")
    curve = page.get_by_role("region", name="Losses").get_by_role("img")
    number = r"\d+(\.\d+)?"
    await expect(curve).to_have_accessible_name(re.compile(rf"now: training {number}, held out {number}$"))
    await expect(page.get_by_role("region", name="What has happened")).to_contain_text(
        "The job has successfully completed"
    )
    await talk(page, "Who are you?")
    await keep(page, "my-pirate")
    await page.get_by_role("button", name="Chat with: Result").click()
    await expect(page.get_by_role("banner").get_by_role("combobox", name="Model")).to_have_value(re.compile("demo:ft-"))
    await page.get_by_role("link", name="Jobs").click()
    await page.get_by_role("link", name="Tunings").click()
    await expect(page.get_by_role("listitem", name=re.compile("demo:ft-pirate"))).to_contain_text("completed")
    await page.get_by_role("link", name="Engine", exact=True).click()
    await page.get_by_role("link", name="Models").click()
    await expect(page.get_by_role("region", name="demo", exact=True)).to_be_visible()
    await expect(page.get_by_role("region", name=re.compile("demo:ft-"))).to_have_count(0)
    await forget_tuned_states(page, "my-pirate")


async def forget_tuned_states(page: Page, *others: str) -> None:
    """Delete the states of tunings, and others by name, from the server, which other tests use, too."""
    for model in (await call(page, "GET", "/v1/models"))["data"]:
        if "parent" in model:
            await call(page, "DELETE", f"/v1/models/{model['id']}")
    for name in others:
        await call(page, "DELETE", f"/v1/states/{name}")


async def talk(page: Page, question: str) -> None:
    """Ask both models a question, and then another one, which follows their own answers."""
    bodies: list[Any] = []

    def note(sent: Request) -> None:
        if sent.url.endswith("/chat/completions"):
            bodies.append(sent.post_data_json)

    page.on("request", note)
    ask = page.get_by_role("textbox", name="Ask both")
    for text in (question, "And then?"):
        await ask.fill(text)
        await ask.press("Enter")
        turn = page.get_by_role("article", name=text)
        await expect(turn.locator(".markdown").first).not_to_be_empty()
        await expect(turn.locator(".markdown").last).not_to_be_empty()
        await expect(page.get_by_role("button", name="Send")).to_be_visible()
    assert {body["model"].partition(":")[2][:9] for body in bodies} == {"", "ft-pirate"}
    assert [len(body["messages"]) for body in bodies] == [1, 1, 3, 3]


async def keep(page: Page, name: str) -> None:
    await page.get_by_role("button", name="Keep as …: Result").click()
    field = page.get_by_role("dialog").get_by_role("textbox", name="Name")
    await expect(field).to_have_value("pirate")
    await field.fill(name)
    await page.get_by_role("button", name="Keep as …", exact=True).click()
    await expect(page.get_by_text(f"“{name}”")).to_be_visible()
    states = (await call(page, "GET", "/v1/states"))["data"]
    assert name in {state["name"] for state in states}


async def test_what_is_odd_in_a_file_is_shown_in_chinese_on_a_phone(visit: Visit, tmp_path: Path) -> None:
    lines = [
        *(example(f"How much is {number} + 1?", str(number + 1)) for number in range(9)),
        example("How much is 0 + 1?", "1"),
        example("Hello", " "),
        '{"prompt": "<script>window.ran = true</script>", "completion": "a"}',
        '{"instruction": "Say", "input": "it", "output": "b"}',
        '{"conversations": [{"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]}',
        '{"text": "e"}',
        '{"messages": [{"role": "user", "content": "Hello"}]}',
        '{"question": "Hello"}',
        '{"text": 5}',
        "Hello",
    ]
    file = tmp_path / "examples.jsonl"
    file.write_text("\n\n".join(lines))
    page = await visit("/#/tune", viewport=PHONE, color_scheme="dark", locale="zh-CN")
    await page.locator("input[type=file]").set_input_files(file)
    await expect(page.get_by_text("示例：19（至少 10 个） 其中 4 个无法使用。")).to_be_visible()
    rows = page.get_by_role("table").locator("tbody tr")
    texts = [" ".join((await row.inner_text()).split()) for row in await rows.all()]
    assert texts[:6] == [
        "19 How much is 0 + 1? 与第 1 行相同 1",
        "21 Hello 空回答，不会学习",
        '31 {"messages": [{"role": "user", "content": "Hello"}]} 没有回答',
        '33 {"question": "Hello"} 没有 messages、conversations、instruction、prompt、text 中的任何一个键',
        '35 {"text": 5} 值的类型不对',
        "37 Hello 不是 JSON",
    ]
    assert {"23 <script>window.ran = true</script> a", "25 Say it b", "27 c d", "29 e"} <= set(texts)
    assert not await page.evaluate("'ran' in window")
    await expect(page.get_by_role("button", name="微调 demo")).to_be_disabled()
    assert await sideways_scroll(page) == 0
    await page.get_by_role("textbox", name="示例").fill("\n".join([*lines[:9], lines[11]]))
    await expect(page.get_by_role("button", name="微调 demo")).to_be_enabled()


def job(status: str, **fields: object) -> dict[str, object]:
    """Return a tuning as the server describes it."""
    return {
        "id": JOB,
        "model": "demo",
        "status": status,
        "fine_tuned_model": None,
        "created_at": 1_700_000_000,
        "estimated_finish": None,
        "training_file": "file-1",
        "hyperparameters": {},
        "error": None,
        **fields,
    }


async def show(page: Page, tuning: dict[str, object], events: list[dict[str, object]]) -> list[str]:
    """Answer the page's calls about a tuning. Return the list of what it asks to change, which grows."""
    asked: list[str] = []
    checkpoint = {"fine_tuned_model_checkpoint": "demo:pirate", "step_number": 20, "metrics": {"valid_loss": 1.5}}
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events)

    async def act(route: Route) -> None:
        asked.append(route.request.url.rpartition("/")[2])
        tuning["status"] = {"pause": "paused", "resume": "queued", "cancel": "cancelled"}[asked[-1]]
        await route.fulfill(json=tuning)

    await page.route(ADDRESS, lambda route: route.fulfill(json=tuning))
    await page.route(f"{ADDRESS}/checkpoints", lambda route: route.fulfill(json={"data": [checkpoint]}))
    await page.route(f"{ADDRESS}/events?stream=true", lambda route: route.fulfill(body=stream))
    for action in ("pause", "resume", "cancel"):
        await page.route(f"{ADDRESS}/{action}", act)
    await page.goto(f"{page.url.partition('#')[0]}#/tune/{JOB}")
    return asked


async def test_a_running_tuning_is_paused_resumed_and_cancelled(visit: Visit) -> None:
    page = await visit()
    losses = [
        {"step": 0, "total_steps": 40, "valid_loss": 3.25},
        {"step": 1, "total_steps": 40, "train_loss": 3.5},
        {"step": 2, "total_steps": 40, "train_loss": None},
        {"step": 10, "total_steps": 40, "train_loss": 2.125},
    ]
    events = [
        {"id": str(n), "created_at": 1, "level": "info", "message": "", "data": data} for n, data in enumerate(losses)
    ]
    warning = {"id": "w", "created_at": 1, "level": "warn", "message": "<b>come twice</b>: line 5", "data": None}
    asked = await show(page, job("running", estimated_finish=4_000_000_000), [*events, warning])
    status = page.get_by_role("region", name="State of the tuning")
    await expect(status).to_contain_text("update 10 of 40")
    await expect(status).to_contain_text(re.compile(r"about [\d,]+ days left"))
    await expect(status.get_by_role("progressbar")).to_have_attribute("value", "10")
    curve = page.get_by_role("region", name="Losses").get_by_role("img")
    await expect(curve).to_have_accessible_name(re.compile("now: training 2.125, held out 3.25$"))
    await expect(page.get_by_role("region", name="What has happened")).to_contain_text("<b>come twice</b>: line 5")
    await expect(page.get_by_role("row", name="Checkpoint after 20 updates")).to_be_visible()
    await page.get_by_role("textbox", name="Ask both").fill("Hello")
    await page.keyboard.press("Enter")
    turn = page.get_by_role("article", name="Hello")
    await expect(turn).to_contain_text("Checkpoint after 20 updates")
    await expect(turn.locator(".markdown").last).to_contain_text(re.compile("[Aa]rr|[Aa]hoy|[Aa]ye"))
    for button, state in (("Pause", "paused"), ("Go on", "waiting"), ("Cancel", "cancelled")):
        await status.get_by_role("button", name=button).click()
        await expect(status).to_contain_text(state)
    assert asked == ["pause", "resume", "cancel"]
    await expect(status.get_by_role("button")).to_have_count(0)


async def test_why_a_tuning_has_failed_is_shown(visit: Visit, guard: Guard) -> None:
    guard.allow("Failed to load resource")
    page = await visit()
    await show(page, job("failed", error={"message": "line 3 can't be used\nline 4 neither"}), [])
    await expect(page.get_by_role("alert")).to_contain_text("line 4 neither")
    await page.goto(f"{page.url.partition('#')[0]}#/tune/ftjob-missing")
    await expect(page.get_by_role("alert")).to_contain_text("ftjob-missing")


async def test_a_lora_is_asked_for_and_saved(visit: Visit) -> None:
    page = await visit("/#/tune")
    await page.get_by_role("button", name="Try an example").click()
    await page.get_by_role("combobox", name="What is trained").select_option("LoRA of rank 8")
    await page.get_by_role("combobox", name="How it is trained").select_option("With the initial state")
    await page.get_by_role("spinbutton", name="Learning rate multiplier").fill("2")
    bodies: list[Any] = []
    ended = job("succeeded", fine_tuned_model="demo:ft-pirate-1", result_files=["file-1", "file-2"])

    async def begin(route: Route) -> None:
        bodies.append(route.request.post_data_json)
        await route.fulfill(json=ended)

    await page.route("**/v1/files", lambda route: route.fulfill(json={"id": "file-1"}))
    await page.route("**/v1/files/file-2/content", lambda route: route.fulfill(body="a LoRA"))
    await page.route(ADDRESS, lambda route: route.fulfill(json=ended))
    await page.route(f"{ADDRESS}/checkpoints", lambda route: route.fulfill(json={"data": []}))
    await page.route(f"{ADDRESS}/events?stream=true", lambda route: route.fulfill(body=""))
    await page.route("**/v1/fine_tuning/jobs", begin)
    await page.get_by_role("button", name="Tune demo").click()
    async with page.expect_download() as saving:
        await page.get_by_role("button", name="Save Result").click()
    saved = await saving.value
    assert (saved.suggested_filename, (await saved.path()).read_text()) == ("demo-ft-pirate-1.safetensors", "a LoRA")
    assert bodies[0]["method"] == {
        "type": "lora",
        "lora": {"hyperparameters": {"learning_rate_multiplier": 2, "rank": 8, "train_state": True}},
    }
    await expect(page.get_by_role("heading", name="LoRAs")).to_be_visible()
    await expect(page.get_by_role("textbox", name="Ask both")).to_have_count(0)
    models = await call(page, "GET", "/v1/models")
    models["data"].append({**models["data"][0], "id": "demo:ft-pirate-1", "parent": "demo"})
    await page.route("**/v1/models", lambda route: route.fulfill(json=models))
    await page.reload()
    await expect(page.get_by_role("textbox", name="Ask both")).to_be_visible()
    await expect(page.get_by_role("button", name="Chat with: Result")).to_be_visible()
    ended["hyperparameters"] = {"rank": 8, "train_state": True}
    await page.reload()
    async with page.expect_download() as saving:
        await page.get_by_role("button", name="Save Result").click()
    assert (await saving.value).suggested_filename == "demo-ft-pirate-1.state"
