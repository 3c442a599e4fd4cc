"""Cases that vLLM and text-generation-inference test: stop strings, characters, log-probabilities and streams.

The engine is a real one over a runner that says one text, with a vocabulary of words, so that stop strings begin and
end within tokens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

from rnn_engine.engine import Engine
from rnn_engine.loading.parts import assemble
from tests.support.fake_runner import FakeRunner, scripted_logits
from tests.support.http import Body, Client, Through, client_over, events, parse_event

WORDS = ["", "A", " model", " of", " states", ".", " It", " keeps", " a", " group", " small", " volunt", "eer"]
WORDS += ["/test", ";"]
BYTES = [word.encode() for word in WORDS] + [byte.to_bytes() for byte in "é😀".encode()]
SCRIPT = [WORDS.index(word) for word in ("A", " model", " of", " states", ".", " It", " keeps", " a", " group")]
SCRIPT += [WORDS.index(" small"), WORDS.index(" volunt"), WORDS.index("eer"), *range(len(WORDS), len(BYTES))]
SCRIPT += [WORDS.index("/test"), WORDS.index(";"), WORDS.index(".")]
TEXT = b"".join(BYTES[token] for token in SCRIPT).decode()
GREEDY: Body = {"prompt": ";", "temperature": 0, "presence_penalty": 0, "frequency_penalty": 0, "max_tokens": 40}


@dataclass(frozen=True, slots=True)
class WordTokenizer:
    """A `Tokenizer` for texts made of the vocabulary's words."""

    name: str = "words"
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    size: int = 257

    def encode(self, text: str) -> list[int]:
        data, tokens = text.encode(), list[int]()
        while data:
            token = max((t for t in range(1, len(BYTES)) if data.startswith(BYTES[t])), key=lambda t: len(BYTES[t]))
            tokens.append(token)
            data = data[len(BYTES[token]) :]
        return tokens

    def decode_bytes(self, token: int) -> bytes:
        return BYTES[token] if token < len(BYTES) else b"?"


@pytest.fixture
async def client(through: Through) -> AsyncIterator[Client]:
    tokenizer = WordTokenizer()
    runner = FakeRunner(scripted_logits(tokenizer.size, SCRIPT))
    engine = Engine(assemble(runner, tokenizer, model="words", device="none", weights="f32"))
    async with client_over(await through(engine)) as client:
        yield client


async def choice(client: Client, **fields: object) -> Body:
    answer: Body = await (await client.post("/v1/completions", json={**GREEDY, **fields})).json()
    [only] = answer["choices"]
    return {**only, "usage": answer["usage"]}


def pieces_of(text: str) -> list[Body]:
    return [chunk["choices"][0] for chunk in events(text)]


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (["."], "A model of states"),
        (["group of", "small"], "A model of states. It keeps a group "),
        (["roup sm", "short"], "A model of states. It keeps a g"),  # over two tokens, from within the first
        (["olunt"], "A model of states. It keeps a group small v"),  # within a token
        (["nteer"], "A model of states. It keeps a group small volu"),  # ends with a token
        (["😀"], "A model of states. It keeps a group small volunteeré"),  # over tokens that are no whole characters
        (["never", "said"], TEXT),
    ],
)
async def test_where_a_stop_string_ends_the_text(client: Client, stop: list[str], expected: str) -> None:
    whole = await choice(client, stop=stop)
    assert (whole["text"], whole["finish_reason"]) == (expected, "stop")
    response = await client.post("/v1/completions", json={**GREEDY, "stop": stop, "stream": True})
    assert "".join(piece["text"] for piece in pieces_of(await response.text())) == expected


@pytest.mark.parametrize("stop", [["s", " small"], [" small", "s"]])
async def test_the_stop_string_that_is_complete_first_counts(client: Client, stop: list[str]) -> None:
    assert (await choice(client, stop=stop))["text"] == "A model of "


@pytest.mark.parametrize("stop", [["states", "ate"], ["ate", "states"]])
async def test_one_that_begins_later_but_ends_earlier_counts(client: Client, stop: list[str]) -> None:
    assert (await choice(client, stop=stop))["text"] == "A model of st"


async def test_stop_tokens(client: Client) -> None:
    ended = await choice(client, stop_token_ids=[WORDS.index(" group")], stop=None)
    assert (ended["text"], ended["finish_reason"]) == ("A model of states. It keeps a", "stop")


@pytest.mark.parametrize(
    ("max_tokens", "stop", "reason", "word"),
    [
        (3, "/test; ", "length", "length"),
        (40, "/test;", "stop", "stop_sequence"),
        (40, "/test; ", "stop", "eos_token"),  # never complete
    ],
)
async def test_why_a_text_ends(client: Client, max_tokens: int, stop: str, reason: str, word: str) -> None:
    assert (await choice(client, stop=[stop], max_tokens=max_tokens))["finish_reason"] == reason
    parameters = {"stop": [stop], "max_new_tokens": max_tokens, "details": True}
    answer = await (await client.post("/generate", json={"inputs": ";", "parameters": parameters})).json()
    assert answer["details"]["finish_reason"] == word


async def test_characters_come_whole_and_nothing_comes_twice(client: Client) -> None:
    response = await client.post("/v1/completions", json={**GREEDY, "stop": None, "stream": True})
    pieces = pieces_of(await response.text())
    assert "".join(piece["text"] for piece in pieces) == TEXT
    assert not any("\N{REPLACEMENT CHARACTER}" in piece["text"] for piece in pieces)
    assert [piece["finish_reason"] for piece in pieces if piece["finish_reason"]] == ["stop"]
    response = await client.post("/generate_stream", json={"inputs": ";", "parameters": {"max_new_tokens": 40}})
    frames = [parse_event(frame) for frame in (await response.text()).split("\n\n")[:-1]]
    assert frames[-1]["generated_text"] == TEXT
    assert [frame["generated_text"] for frame in frames[:-1]] == [None] * (len(frames) - 1)


async def test_offsets_of_tokens_where_a_stream_holds_text_back(client: Client) -> None:
    """The stream holds back a part of a stop string, so the text lags behind the tokens."""
    fields: Body = {**GREEDY, "stop": [" states. It does"], "logprobs": 0, "max_tokens": 8}
    whole = (await choice(client, **fields))["logprobs"]
    streamed = pieces_of(await (await client.post("/v1/completions", json={**fields, "stream": True})).text())
    for key in ("tokens", "text_offset", "token_logprobs"):
        assert [item for piece in streamed if piece.get("logprobs") for item in piece["logprobs"][key]] == whole[key]
    assert whole["text_offset"] == [0, 1, 7, 10, 17, 18, 21, 27]


@pytest.mark.parametrize(("logprobs", "count"), [(0, 1), (3, 3)])
async def test_how_many_alternatives_are_told(client: Client, logprobs: int, count: int) -> None:
    told = (await choice(client, logprobs=logprobs, max_tokens=5))["logprobs"]
    assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["top_logprobs"]) == 5
    assert [len(each) for each in told["top_logprobs"]] == [count] * 5
    assert (await choice(client, max_tokens=5))["logprobs"] is None


async def test_too_many_alternatives_are_refused_and_the_server_goes_on(client: Client) -> None:
    for body in ({"logprobs": 2000}, {"logprobs": 2000, "stream": True}):
        response = await client.post("/v1/completions", json={**GREEDY, **body})
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "logprobs"
    assert (await choice(client, stop=["."]))["text"] == "A model of states"


@pytest.mark.parametrize("options", [{}, {"include_usage": False}])
async def test_usage_is_not_told_unless_it_is_asked_for(client: Client, options: Body) -> None:
    body = {**GREEDY, "max_tokens": 5, "stream": True, "stream_options": options}
    chunks = events(await (await client.post("/v1/completions", json=body)).text())
    assert all(chunk.get("usage") is None for chunk in chunks)


async def test_usage_comes_alone_after_the_text(client: Client) -> None:
    body = {**GREEDY, "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(await (await client.post("/v1/completions", json=body)).text())
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    usage = last["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (1, 5, 6)


async def test_several_answers_in_one_stream(client: Client) -> None:
    body = {**GREEDY, "n": 3, "max_tokens": 12, "stream": True, "stop": None}
    chunks = events(await (await client.post("/v1/completions", json=body)).text())
    texts = dict.fromkeys(range(3), "")
    for chunk in chunks:
        for piece in chunk["choices"]:
            texts[piece["index"]] += piece["text"]
    assert set(texts.values()) == {"A model of states. It keeps a group small volunteer"}


async def test_the_official_client_reads_a_stream_that_ends_by_a_stop_string(client: Client) -> None:
    url = str(client.make_url("/v1"))
    async with openai.AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as official:
        fields: Any = {"model": "words", "prompt": ";", "temperature": 0, "max_tokens": 40}
        stream = await official.completions.create(stop=["."], stream=True, **fields)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "A model of states"
