"""The document pages that follow a step and a chat name the files and functions that really run."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from aiohttp.test_utils import TestClient

from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.requests import GenerateRequest, TextDelta
from rnn_engine.sampling.params import SamplingParams
from tests.support.http import client_over
from tests.support.layers import FOLDERS

ROOT = Path(__file__).resolve().parents[1]
ENGINE_ROOMS: tuple[str, ...] = ("rnn_engine/scheduler", "rnn_engine/forward", "rnn_engine/gpu", "rnn_engine/sampling")
ENGINE_ROOMS += (
    "rnn_engine/versions",
    "rnn_engine/types.py",
    "states/rnn_engine_states/cache",
    "states/rnn_engine_states/tokens.py",
    "shaders",
)
SETTINGS = LoadSettings("0")  # the first device: `auto` may be numpy, which has no plans


class Page:
    """The files of a page's tables, with the functions that it names in each."""

    def __init__(self, name: str) -> None:
        text = (ROOT / "docs" / name).read_text()
        always, _, sometimes = text.partition("## Only in some")
        self.functions: defaultdict[str, set[str]] = defaultdict(set)
        for file, functions in re.findall(r"^\| `([\w/.]+\.py)` \|.*\|(.*)\|$", always, re.MULTILINE):
            self.functions[file] |= set(re.findall(r"`([\w.]+)`", functions))
        self.sometimes = set(re.findall(r"`([\w/.]+\.py)`", sometimes))


class Trace:
    """The functions of the package that run on any thread while `on`, by file."""

    def __init__(self) -> None:
        self.on = False
        self.functions: defaultdict[str, set[str]] = defaultdict(set)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Trace this thread, and those started while the block runs."""
        before = sys.getprofile()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self.on or event != "call":
            return
        file = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
        if file.startswith(FOLDERS) and frame.f_code.co_name != "<module>":
            self.functions[file].add(frame.f_code.co_qualname)


def check(page: Page, trace: Trace, is_on_page: Callable[[str], bool]) -> None:
    ran = {file for file in trace.functions if is_on_page(file)}
    assert ran - page.functions.keys() - page.sometimes == set(), "files that run and are not on the page"
    assert page.functions.keys() - ran == set(), "files on the page that do not run"
    for file, functions in page.functions.items():
        assert functions, f"the page names no function of {file}"
        assert functions <= trace.functions[file], file


async def test_one_decode_step() -> None:
    """Trace the steps in which all of eight sequences decode."""
    page, trace = Page("one-decode-step.md"), Trace()
    shown = [0] * 8

    async def generate(engine: Engine, place: int) -> None:
        request = GenerateRequest(
            prompt=[10 + place, 20, 30], max_tokens=10_000, stop_tokens=(), sampling=SamplingParams(seed=place)
        )
        async with aclosing(engine.generate(request)) as events:
            async for event in events:
                shown[place] += isinstance(event, TextDelta)
                trace.on = min(shown) >= 8 and max(shown) <= 60
                if max(shown) > 60:
                    break

    with trace.installed():
        async with await Engine.load(model_path(), SETTINGS, num_slots=8) as engine:
            await asyncio.gather(*(generate(engine, place) for place in range(8)))
    check(page, trace, lambda _: True)
    assert len(page.functions) <= 25


async def test_one_chat() -> None:
    """Trace a second chat, whole and as a stream. The first one has done all that is done only once."""
    page, trace = Page("one-chat.md"), Trace()
    with trace.installed():
        async with await Engine.load(model_path(), SETTINGS, num_slots=8) as engine, client_over(engine) as client:
            await _chat(client, "Hello", stream=False)
            trace.on = True
            await _chat(client, "Hello again", stream=False)
            await _chat(client, "Hello once more", stream=True)
            trace.on = False
    check(page, trace, lambda file: not file.startswith(ENGINE_ROOMS))


async def _chat(client: TestClient[Any, Any], content: str, *, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 12, "stream": stream}
    async with client.post("/v1/chat/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
