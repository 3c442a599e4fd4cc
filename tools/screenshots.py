"""`python -m tools.screenshots`: take a picture of each page, in light and dark colours and in two sizes.

The tool starts a server with the demo model, and one with the demo pair for the page Search. The pictures go to
docs/screenshots. Those in Chinese need a font that has its characters.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import click
from playwright.async_api import Browser, Page, ViewportSize, async_playwright, expect

from rnn_engine.demo import DEMO
from tests.support.browser import call
from tools.live_server.process import ROOT, ServerProcess
from tools.setup.programs import BROWSER

ColorScheme: TypeAlias = Literal["light", "dark"]

SCHEMES: Final[tuple[ColorScheme, ...]] = ("light", "dark")
SIZES: Final[dict[str, ViewportSize]] = {
    "desktop": {"width": 1280, "height": 800},
    "phone": {"width": 390, "height": 844},
}
_QUALITY: Final = 80  # of WebP
_FOLDER: Final = ROOT / "docs" / "screenshots"
_PAIR: Final = "demo-embed"
_TIMEOUT_MS: Final = 60_000
_WHOLE: Final = "prompt tokens from the cache"  # stands under an answer that has ended
_CHART_MS: Final = 8000
_TUNING_MS: Final = 600_000
_STREAM: Final = """async (prompt) => {
    const {stream} = await import("/web/api.js");
    const body = {prompt, stream: true, max_tokens: 4000, ignore_eos: true};
    (async () => { for await (const _ of stream("/v1/completions", body)); })();
}"""

_BEGIN_BATCH: Final = """async ([name, text]) => {
    const {beginBatch} = await import("/web/pages/jobs/calls.js");
    await beginBatch(new File([text], name), "24h");
}"""


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture to take: the page's address after `#/`, and a function that acts on the page first."""

    address: str
    play: Callable[[Page], Awaitable[None]]
    model: str = DEMO
    language: str = "en-GB"


async def fill_server(page: Page) -> None:
    """Fill the server with conversations that share their beginnings, and with named states, for pages to show."""
    france, twelve = "What is the capital of France?", "How much is 12 + 30?"
    for said in (
        (france, "And of Japan?"),
        (france, "And of Italy?", "Tell me a joke."),
        (france, "Write a haiku about the sea."),
        (twelve, "How much is 5 + 3?"),
        ("Who are you?",),
    ):
        messages: list[dict[str, str]] = [{"role": "system", "content": "You are a helpful assistant."}]
        for text in said:
            messages.append({"role": "user", "content": text})
            answer = await call(page, "POST", "/v1/chat/completions", {"messages": messages, "temperature": 0})
            messages.append(answer["choices"][0]["message"])
    named = {entry["name"] for entry in (await call(page, "GET", "/v1/states"))["data"]}
    for name, text in (("guide", "You are a guide who knows every capital."), ("poet", "You answer in haiku.")):
        if name not in named:
            await call(page, "POST", "/v1/states", {"name": name, "prompt": f"System: {text}\n\n"})


async def chat(page: Page) -> None:
    for example in ("A sum", "A tool that the model may call"):
        await page.get_by_role("button", name=example).click()
        await expect(page.get_by_text(_WHOLE)).to_be_visible()
        await page.goto(page.url.partition("#")[0] + "#/chat")
        await page.reload()  # a new conversation
    field = page.get_by_role("textbox", name="Message")
    for number, text in enumerate(
        ("What is the capital of France?", "Write a haiku about the sea.", "Tell me a joke.")
    ):
        await field.fill(text)
        await field.press("Enter")
        await expect(page.get_by_text(_WHOLE)).to_have_count(number + 1)
    await page.get_by_label("Initial state").select_option("pirate")
    answer = page.get_by_role("article", name="Model").last
    await answer.get_by_role("button", name="Another answer").click()
    await expect(answer).to_contain_text("2 / 2")
    await expect(answer).to_contain_text(_WHOLE)
    await page.mouse.move(0, 0)


async def write(page: Page) -> None:
    field = page.get_by_role("textbox", name="Text")
    await field.fill("User: Tell me a joke.\n\nAssistant:")
    await page.get_by_role("button", name="Continue", exact=True).click()
    facts = page.locator(".write-facts")
    await expect(facts).to_contain_text("ended")
    await page.get_by_role("button", name="Show probabilities").click()
    await expect(facts).to_contain_text("perplexity")
    await expect(page.get_by_role("button", name="Continue", exact=True)).to_be_visible()
    box = await page.locator(".editor .token", has_text=re.compile("^ (Wh|Did|Two)")).first.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)  # the field lies above it
    await expect(page.locator(".popover")).to_be_visible()


async def score(page: Page) -> None:
    await page.get_by_role("button", name="Try an example").click()
    await page.get_by_role("button", name="Score", exact=True).click()
    bars = page.get_by_role("list", name="How likely each choice is").get_by_role("listitem")
    await expect(bars).to_have_count(4)
    await bars.first.locator("summary").click()


async def search(page: Page) -> None:
    await _search(page, "Try an example", "Query", "Search")


async def search_in_chinese(page: Page) -> None:
    await _search(page, "试试示例", "查询", "检索")


async def _search(page: Page, example: str, field: str, button: str) -> None:
    await call(page, "DELETE", "/v1/cache")  # the texts were read for the pictures before
    await page.get_by_role("button", name=example).click()
    rows = page.get_by_role("table").locator("tbody tr")
    for number, query in enumerate(("", "Where do I buy bread?", "On which day does the baker rest?")):
        if query:
            await page.get_by_role("textbox", name=field).fill(query)
        await page.get_by_role("button", name=button, exact=True).click()
        await expect(rows).to_have_count(number + 2)  # one for the texts, which are read once
    await rows.last.scroll_into_view_if_needed()


async def jobs(page: Page) -> None:
    """Run a batch of questions to its end, and show one whose lines are wrong and one that runs."""
    questions = [f"What is the capital of {country}?" for country in ("France", "Italy", "Japan", "Spain", "Norway")]
    chats = [
        _request(f"question-{number}", {"messages": [{"role": "user", "content": question}]})
        for number, question in enumerate(questions)
    ]
    stories = [{"prompt": f"Story {number}: ", "max_tokens": 60, "ignore_eos": True} for number in range(500)]
    batches: dict[str, list[dict[str, object]]] = {
        "capitals.jsonl": chats,
        "twice.jsonl": [*chats, *chats[:2]],
        "stories.jsonl": [_request(f"story-{n}", body, "/v1/completions") for n, body in enumerate(stories)],
    }
    if not (await call(page, "GET", "/v1/batches"))["data"]:
        for name, lines in batches.items():
            await page.evaluate(_BEGIN_BATCH, [name, "\n".join(map(json.dumps, lines))])
    stories_place = page.get_by_role("listitem", name="stories.jsonl")
    await expect(stories_place).to_contain_text("left")


def _request(custom_id: str, body: object, url: str = "/v1/chat/completions") -> dict[str, object]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


async def results(page: Page) -> None:
    place = page.get_by_role("listitem", name="capitals.jsonl")
    await place.get_by_role("button", name="Results").click()
    await expect(page.get_by_role("dialog").get_by_role("listitem")).to_have_count(5)


async def tune(page: Page) -> None:
    field = page.get_by_role("textbox", name="Examples")
    await page.get_by_role("button", name="Try an example").click()
    text = await field.input_value()
    await field.fill("\n".join([*text.splitlines(), text.splitlines()[0], '{"messages": []}']))
    await expect(page.get_by_text("1 of them can")).to_be_visible()


async def tuning(page: Page) -> None:
    """Show a tuning that has ended; begin it if there is none."""
    begun = (await call(page, "GET", "/v1/fine_tuning/jobs"))["data"]
    if begun:
        await page.goto(f"{page.url}/{begun[0]['id']}")
    else:
        await page.get_by_role("button", name="Try an example").click()
        await page.get_by_role("button", name="Tune demo").click()
    await expect(page.get_by_role("region", name="State of the tuning")).to_contain_text(
        "completed", timeout=_TUNING_MS
    )
    ask = page.get_by_role("textbox", name="Ask both")
    for question in ("What is the capital of Spain?", "How many legs does a dog have?"):
        await ask.fill(question)
        await ask.press("Enter")
        await expect(page.get_by_role("button", name="Send")).to_be_visible()


async def tree(page: Page) -> None:
    await expect(page.get_by_role("treeitem").first).to_be_visible()


async def compare(page: Page) -> None:
    await expect(page.get_by_role("img", name="Layers from top to bottom")).to_be_visible()


async def text_map(page: Page) -> None:
    await page.get_by_role("button", name="Draw the map").click()
    await page.get_by_text("of the texts have the label").scroll_into_view_if_needed()


async def engine(page: Page) -> None:
    await expect(page.get_by_role("region", name="Slots", exact=True)).to_contain_text("0 of")
    for prompt in ("The sea", "Once upon a time", "My name is"):
        await page.evaluate(_STREAM, prompt)
    await expect(page.get_by_role("region", name="Slots", exact=True)).to_contain_text("3 of")
    await page.wait_for_timeout(_CHART_MS)  # the charts grow with time


SCENES: Final = {
    "chat": Scene("chat", chat),
    "write": Scene("write", write),
    "score": Scene("score", score),
    "search": Scene("search", search, _PAIR),
    "search-chinese": Scene("search", search_in_chinese, _PAIR, "zh-CN"),
    "states": Scene("states", tree),
    "states-compare": Scene("states/compare/pirate", compare),
    "states-map": Scene("states/map", text_map),
    "jobs": Scene("jobs", jobs),
    "jobs-results": Scene("jobs", results),
    "engine": Scene("engine", engine),
    "tune": Scene("tune", tune),
    "tune-result": Scene("tune", tuning),
}
"""By the name of the picture."""


@click.command()
@click.option(
    "--only", multiple=True, type=click.Choice(list(SCENES)), help="Take only this picture. May be given several times."
)
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), default=_FOLDER, show_default=True)
def main(only: Sequence[str], device: str, folder: Path) -> None:
    """Take pictures of the web page."""
    folder.mkdir(parents=True, exist_ok=True)
    names = only or list(SCENES)
    for model in sorted({SCENES[name].model for name in names}):
        with ServerProcess((model, "--device", device)) as server:
            asyncio.run(_take_all(server.url, model, [name for name in names if SCENES[name].model == model], folder))
    total = sum(path.stat().st_size for path in folder.glob("*.webp"))
    click.echo(f"{total:,} bytes together")


async def _take_all(url: str, model: str, names: Sequence[str], folder: Path) -> None:
    expect.set_options(timeout=_TIMEOUT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=BROWSER.find(), args=["--no-sandbox"])
        if model == DEMO:
            page = await browser.new_page()
            await page.goto(url)
            await fill_server(page)
        for name in names:
            for size in SIZES:
                for scheme in SCHEMES:
                    path = folder / f"{name}-{size}-{scheme}.webp"
                    await _take(browser, url, SCENES[name], size, scheme, path)
                    click.echo(f"{path.stat().st_size:9,} {path.name}")


async def _take(browser: Browser, url: str, scene: Scene, size: str, scheme: ColorScheme, path: Path) -> None:
    context = await browser.new_context(
        viewport=SIZES[size], color_scheme=scheme, locale=scene.language, reduced_motion="reduce"
    )
    page = await context.new_page()
    page.set_default_timeout(_TIMEOUT_MS)
    await page.goto(f"{url}/#/{scene.address}")
    await scene.play(page)
    await _take_picture(page, path)
    await context.close()


async def _take_picture(page: Page, path: Path) -> None:
    """Write a picture of the browser window to a file, as WebP, which Playwright itself can't do."""
    await page.evaluate("document.activeElement?.blur()")  # its caret blinks
    session = await page.context.new_cdp_session(page)
    taken = await session.send("Page.captureScreenshot", {"format": "webp", "quality": _QUALITY})
    path.write_bytes(base64.b64decode(taken["data"]))


if __name__ == "__main__":
    main()
