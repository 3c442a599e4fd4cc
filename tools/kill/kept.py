"""A test of one server that is killed while it keeps conversations, responses in the background and message batches."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from aiohttp import ClientError, ClientSession

from rnn_engine.files import TEMPORARY_SUFFIX
from tools.live_server.asking import device_of
from tools.live_server.caller import Caller, SurpriseError
from tools.live_server.process import ServerProcess
from tools.reliability_table import Row, command_line, where

_RESPONSES: Final = "/v1/responses"
_CONVERSATIONS: Final = "/v1/conversations"
_BATCHES: Final = "/v1/messages/batches"
_NUM_WRITERS: Final = 3  # each with a conversation of its own
_NUM_QUESTIONS: Final = 10  # whose answers are known
_BATCH_REQUESTS: Final = 4
_MOST_CHANGES: Final = 10  # that are acknowledged before a kill
_LONGEST_DELAY: Final = 0.5  # seconds from the last of them to the kill
_PATIENCE: Final = 120.0  # seconds in which they have to be acknowledged, and jobs have to end
_GREEDY: Final = {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 0}
_MAX_TOKENS: Final = 24


def _question(number: int) -> str:
    return f"Tell me about {number} cats and {number + 1} dogs."


def _ask(number: int) -> dict[str, object]:
    return {"input": _question(number), "max_output_tokens": _MAX_TOKENS, **_GREEDY}


def _message(number: int) -> dict[str, object]:
    messages = [{"role": "user", "content": _question(number)}]
    return {"model": "demo", "max_tokens": _MAX_TOKENS, "messages": messages, **_GREEDY}


def _text(response: Any) -> str:  # noqa: ANN401
    return "".join(item["content"][0]["text"] for item in response["output"])


@dataclass
class _Talk:
    """What a conversation holds, as far as it was acknowledged."""

    id: str = ""  # empty: there is none
    texts: list[str] = field(default_factory=list)
    responses: dict[str, str] = field(default_factory=dict)  # their texts, by id
    adds: int = 0  # how many items the change adds that has no answer yet; -1 = it deletes the conversation


@dataclass
class KeptCampaign:
    """All lives of a server, each from a start to a kill or stop, with what was acknowledged and the faults."""

    folder: Path
    options: tuple[str, ...]
    random: Random
    talks: Sequence[_Talk] = field(default_factory=lambda: [_Talk() for _ in range(_NUM_WRITERS)])
    answers: list[str] = field(default_factory=list)  # to the questions, of a server that nobody has killed
    queued: dict[str, int] = field(default_factory=dict)  # responses in the background not checked yet -> question
    batches: list[str] = field(default_factory=list)  # message batches that were not checked
    acknowledged: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    device: str = ""
    faults: list[str] = field(default_factory=list)

    async def live(self, *, kill: bool) -> None:
        """Run one life: start the server, check what was acknowledged before, and change it until a kill."""
        cut_short = list(self.folder.glob(f"*{TEMPORARY_SUFFIX}"))
        with ServerProcess(("--job-folder", str(self.folder), *self.options)) as server:
            left = [path.name for path in cut_short if path.exists()]
            self._note(not left, f"files of writes that were cut short are left: {left}")
            async with ClientSession() as session:
                caller = Caller(session, server.url, self.random, 0)
                try:
                    await self._check(caller)
                    self.device = await device_of(session, server.url)
                except (SurpriseError, ClientError) as error:
                    self.faults.append(f"after a start: {error}")
                if kill:
                    await self._change_until_killed(caller, server)
                    self.kills += 1
                else:
                    self._note(server.stop() == 0, "the server did not end with 0 at SIGTERM")

    async def _check(self, caller: Caller) -> None:
        if not self.answers:
            for number in range(_NUM_QUESTIONS):
                response = await caller.call("POST", _RESPONSES, {**_ask(number), "store": False})
                self.answers.append(_text(response))
        for talk in self.talks:
            await self._check_talk(caller, talk)
        for response_id, number in self.queued.items():
            response = await self._ended(caller, f"{_RESPONSES}/{response_id}", "status", ("queued", "in_progress"))
            right = response["status"] in ("completed", "incomplete") and _text(response) == self.answers[number]
            self._note(right, f"{response_id}: {response['status']}, {_text(response)!r}")
            self.checked["responses in the background"] += 1
        self.queued.clear()
        for batch_id in self.batches:
            await self._check_batch(caller, batch_id)
        self.batches.clear()

    async def _check_talk(self, caller: Caller, talk: _Talk) -> None:
        if not talk.id:
            return
        if talk.adds < 0:
            await caller.call("GET", f"{_CONVERSATIONS}/{talk.id}", status=(200, 404))
            await caller.call("DELETE", f"{_CONVERSATIONS}/{talk.id}", status=(200, 404))
            talk.id, talk.texts, talk.adds = "", [], 0
            return
        page = await caller.call("GET", f"{_CONVERSATIONS}/{talk.id}/items?order=asc&limit=100")
        found = [item["content"][0]["text"] for item in page["data"]]
        is_whole = len(found) in (len(talk.texts), len(talk.texts) + talk.adds)
        self._note(is_whole and found[: len(talk.texts)] == talk.texts, f"{talk.id}: {found} in place of {talk.texts}")
        self.checked["conversations"] += 1
        talk.texts, talk.adds = found, 0
        for response_id, text in talk.responses.items():
            response = await caller.call("GET", f"{_RESPONSES}/{response_id}")
            self._note(_text(response) == text, f"{response_id}: {_text(response)!r} in place of {text!r}")
            self.checked["responses"] += 1
        talk.responses.clear()

    async def _check_batch(self, caller: Caller, batch_id: str) -> None:
        batch = await self._ended(caller, f"{_BATCHES}/{batch_id}", "processing_status", ("in_progress",))
        async with caller.session.get(f"{caller.url}{_BATCHES}/{batch_id}/results") as response:
            results = [json.loads(line) async for line in response.content]
        found = sorted((each["custom_id"], each["result"]["message"]["content"][0]["text"]) for each in results)
        expected = [(str(number), self.answers[number]) for number in range(_BATCH_REQUESTS)]
        self._note(found == expected, f"{batch_id}: {batch['request_counts']}, {found}")
        await caller.call("DELETE", f"{_BATCHES}/{batch_id}")
        self.checked["message batches"] += 1

    async def _ended(self, caller: Caller, path: str, name: str, unfinished: Sequence[str]) -> Any:  # noqa: ANN401
        async with asyncio.timeout(_PATIENCE):
            while (found := await caller.call("GET", path))[name] in unfinished:
                await asyncio.sleep(0.01)
        return found

    async def _change_until_killed(self, caller: Caller, server: ServerProcess) -> None:
        acts = [partial(self._talk, caller, talk) for talk in self.talks]
        acts += [partial(self._queue, caller), partial(self._batch, caller)]
        tasks = [asyncio.create_task(_again_and_again(act, lambda: server.running)) for act in acts]
        wanted = self.acknowledged.total() + self.random.randrange(_MOST_CHANGES)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while self.acknowledged.total() < wanted:
                    await asyncio.sleep(0.001)
        self._note(self.acknowledged.total() >= wanted, f"too few changes were acknowledged in {_PATIENCE:g} s")
        await asyncio.sleep(self.random.uniform(0, _LONGEST_DELAY))
        self._note(server.running, "the server ended by itself")
        server.kill()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            self._note(outcome is None, f"while changing: {outcome!r}")

    async def _talk(self, caller: Caller, talk: _Talk) -> None:
        """Change a conversation in one way, or begin one."""
        if not talk.id:
            made = await caller.call("POST", _CONVERSATIONS, {"items": "Hello"})
            talk.id, talk.texts = made["id"], ["Hello"]
        elif len(talk.texts) > 20:
            talk.adds = -1
            await caller.call("DELETE", f"{_CONVERSATIONS}/{talk.id}")
            talk.id, talk.texts, talk.adds = "", [], 0
        elif self.random.random() < 0.3:
            talk.adds = 1
            text = caller.text(5)
            await caller.call("POST", f"{_CONVERSATIONS}/{talk.id}/items", {"items": text})
            talk.texts.append(text)
            talk.adds = 0
        else:
            talk.adds = 2
            number = self.random.randrange(_NUM_QUESTIONS)
            response = await caller.call("POST", _RESPONSES, {**_ask(number), "conversation": talk.id})
            talk.responses[response["id"]] = _text(response)
            talk.texts += [_question(number), _text(response)]
            talk.adds = 0
        self.acknowledged["changes of conversations"] += 1

    async def _queue(self, caller: Caller) -> None:
        """Ask for a response in the background, if few of them wait to be checked."""
        if len(self.queued) < 4:
            number = self.random.randrange(_NUM_QUESTIONS)
            body = {**_ask(number), "background": True, "stream": False}
            self.queued[(await caller.call("POST", _RESPONSES, body))["id"]] = number
            self.acknowledged["responses in the background"] += 1
        await asyncio.sleep(0.05)

    async def _batch(self, caller: Caller) -> None:
        """Make a message batch, if none waits to be checked."""
        if not self.batches:
            requests = [{"custom_id": str(number), "params": _message(number)} for number in range(_BATCH_REQUESTS)]
            self.batches.append((await caller.call("POST", _BATCHES, {"requests": requests}))["id"])
            self.acknowledged["message batches"] += 1
        await asyncio.sleep(0.05)

    def _note(self, held: bool, fault: str) -> None:
        if not held:
            self.faults.append(fault)

    def row(self) -> Row:
        """Return the campaign's row for the table of docs/reliability.md."""
        done = ", ".join(f"{count} {what}" for what, count in sorted(self.acknowledged.items()))
        checked = ", ".join(f"{count} {what}" for what, count in sorted(self.checked.items()))
        return Row(
            "SIGKILL while conversations, responses and message batches are kept",
            f"{self.kills} kills; acknowledged: {done}",
            f"{len(self.faults)} lost, half there, twice there or wrong",
            f"after the next start: {checked}",
            where(self.device),
            command_line("tools.kill"),
        )


async def _again_and_again(act: Callable[[], Awaitable[None]], goes_on: Callable[[], bool]) -> None:
    """Call `act` until `goes_on` returns False, or the connection breaks."""
    while goes_on():
        try:
            await act()
        except (ClientError, ConnectionError):
            if goes_on():
                raise
