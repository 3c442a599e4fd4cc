"""A test of one server that is killed while it keeps conversations and responses in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tools.kill.lives import Act, Lives
from tools.live_server.caller import Caller

_RESPONSES: Final = "/v1/responses"
_CONVERSATIONS: Final = "/v1/conversations"
_NUM_WRITERS: Final = 3  # each with a conversation of its own
_NUM_QUESTIONS: Final = 10  # whose answers are known
_PATIENCE: Final = 120.0  # seconds in which responses in the background have to end
_UNFINISHED: Final = ("queued", "in_progress")
_GREEDY: Final = {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 0}
_MAX_TOKENS: Final = 24


def _question(number: int) -> str:
    return f"Tell me about {number} cats and {number + 1} dogs."


def _ask(number: int) -> dict[str, object]:
    return {"input": _question(number), "max_output_tokens": _MAX_TOKENS, **_GREEDY}


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
class KeptLives(Lives):
    """Kill a server that keeps conversations and responses in the background, and compare them."""

    talks: Sequence[_Talk] = field(default_factory=lambda: [_Talk() for _ in range(_NUM_WRITERS)])
    answers: list[str] = field(default_factory=list)  # to the questions, of a server that nobody has killed
    queued: dict[str, int] = field(default_factory=dict)  # responses in the background not checked yet -> question

    what = "SIGKILL while conversations and responses are kept"
    most_changes = 10
    longest_delay = 0.5

    def acts(self, make_caller: Callable[[], Caller]) -> Sequence[Act]:
        caller = make_caller()
        return [*(partial(self._talk, caller, talk) for talk in self.talks), partial(self._queue, caller)]

    async def check(self, caller: Caller) -> None:
        if not self.answers:
            for number in range(_NUM_QUESTIONS):
                response = await caller.call("POST", _RESPONSES, {**_ask(number), "store": False})
                self.answers.append(_text(response))
        for talk in self.talks:
            await self._check_talk(caller, talk)
        for response_id, number in self.queued.items():
            response = await self._ended(caller, response_id)
            right = response["status"] in ("completed", "incomplete") and _text(response) == self.answers[number]
            self.note(right, f"{response_id}: {response['status']}, {_text(response)!r}")
            self.checked["responses in the background"] += 1
        self.queued.clear()

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
        self.note(is_whole and found[: len(talk.texts)] == talk.texts, f"{talk.id}: {found} in place of {talk.texts}")
        self.checked["conversations"] += 1
        talk.texts, talk.adds = found, 0
        for response_id, text in talk.responses.items():
            response = await caller.call("GET", f"{_RESPONSES}/{response_id}")
            self.note(_text(response) == text, f"{response_id}: {_text(response)!r} in place of {text!r}")
            self.checked["responses"] += 1
        talk.responses.clear()

    async def _ended(self, caller: Caller, response_id: str) -> Any:  # noqa: ANN401
        async with asyncio.timeout(_PATIENCE):
            while (found := await caller.call("GET", f"{_RESPONSES}/{response_id}"))["status"] in _UNFINISHED:
                await asyncio.sleep(0.01)
        return found

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
        self.changes["changes of conversations"] += 1

    async def _queue(self, caller: Caller) -> None:
        """Ask for a response in the background, if few of them wait to be checked."""
        if len(self.queued) < 4:
            number = self.random.randrange(_NUM_QUESTIONS)
            body = {**_ask(number), "background": True, "stream": False}
            self.queued[(await caller.call("POST", _RESPONSES, body))["id"]] = number
            self.changes["responses in the background"] += 1
        await asyncio.sleep(0.05)
