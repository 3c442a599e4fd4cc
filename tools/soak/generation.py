"""Well-behaved clients that ask for text, scores and vectors."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tools.live_server.caller import Caller, events, expect_that

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
NUM_CONVERSATIONS = 12
TURNS = 8  # of a conversation, before it begins anew
_PREFIXES = 8
_PREFIX_WORDS = 60
_GREEDY_PROMPTS = 8


async def chat(caller: Caller) -> None:
    answer = await caller.call("POST", CHAT, {"messages": [_user(caller)], "max_tokens": caller.random.randint(1, 60)})
    expect_that(len(answer["choices"]) == 1, f"not one choice: {answer}")


async def chat_stream(caller: Caller) -> None:
    body = {
        "messages": [_user(caller)],
        "max_tokens": caller.random.randint(1, 60),
        "temperature": caller.random.choice([0, 0.7, 1, 1.5]),
        "stream_options": {"include_usage": True},
    }
    async with caller.stream(CHAT, body) as response:
        last = [event async for event in events(response)][-1]
    expect_that(last["usage"]["completion_tokens"] <= body["max_tokens"], f"too many tokens: {last}")


@dataclass
class Conversations:
    """Chats that send their whole history with each request."""

    histories: list[list[dict[str, str]]] = field(default_factory=lambda: [[] for _ in range(NUM_CONVERSATIONS)])

    async def turn(self, caller: Caller) -> None:
        """Continue a conversation that no other operation is using; without one, send a single chat message."""
        if not self.histories:
            return await chat(caller)
        history = self.histories.pop(caller.random.randrange(len(self.histories)))
        if len(history) >= 2 * TURNS:
            history = []
        try:
            messages = [*history, _user(caller)]
            answer = await caller.call("POST", CHAT, {"messages": messages, "max_tokens": 40})
            history = [*messages, {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}]
        finally:
            self.histories.append(history)
        return None


@dataclass
class GreedyAnswers:
    """Prompts with greedy answers, which must never change."""

    known: dict[int, str] = field(default_factory=dict)

    async def ask(self, caller: Caller) -> None:
        number = caller.random.randrange(_GREEDY_PROMPTS)
        body = {"prompt": f"User: Tell me about {number} cats.\n\nAssistant:", "temperature": 0, "max_tokens": 24}
        text = (await caller.call("POST", TEXT, body))["choices"][0]["text"]
        known = self.known.setdefault(number, text)
        expect_that(text == known, f"prompt {number}: the answer was {known!r} and is {text!r}")


async def common_prefix(caller: Caller) -> None:
    """Send one of a few long texts, with random words at its end."""
    place = caller.random.randrange(_PREFIXES)
    prefix = " ".join(f"{place * number % 97}" for number in range(_PREFIX_WORDS))
    await caller.call("POST", TEXT, {"prompt": f"{prefix} {caller.text(3)}", "max_tokens": 8})


async def many(caller: Caller) -> None:
    body = {"prompt": [caller.text(4), caller.text(9)], "n": 2, "max_tokens": 12, "logprobs": 2, "echo": True}
    answer = await caller.call("POST", TEXT, body)
    expect_that(len(answer["choices"]) == 4, f"not four choices: {answer}")


async def choices(caller: Caller) -> None:
    wanted = [f" {caller.text(1)}" for _ in range(caller.random.randint(2, 8))]
    route = caller.random.choice(["/v1/choices", "/api/oai/chooses"])
    answer = await caller.call("POST", route, {"input": caller.text(12), "choices": wanted})
    ranks = sorted(entry["index"] for entry in answer["data"])
    expect_that(ranks == list(range(len(wanted))), f"not every choice once: {answer}")


async def embeddings(caller: Caller) -> None:
    body = {"input": [caller.text(6), caller.text(6)], "encoding_format": "base64"}
    route, count = caller.random.choice([("/v1/embeddings", 2), ("/api/oai/states", 1)])  # ai00 joins the texts
    expect_that(len((await caller.call("POST", route, body))["data"]) == count, f"not {count} vector(s)")


async def tokens(caller: Caller) -> None:
    text = caller.text(20)
    found = await caller.call("POST", "/tokenize", {"content": text})
    back = await caller.call("POST", "/detokenize", {"tokens": found["tokens"]})
    expect_that(back["content"] == text, f"{text!r} came back as {back}")


async def look(caller: Caller) -> None:
    await caller.call("GET", caller.random.choice(["/health", "/v1/models", "/v1/cache?limit=20", "/v1/states"]))


async def drop_cache(caller: Caller) -> None:
    await caller.call("DELETE", "/v1/cache")
    await asyncio.sleep(0)


def _user(caller: Caller) -> dict[str, str]:
    return {"role": "user", "content": caller.text(caller.random.randint(1, 30))}
