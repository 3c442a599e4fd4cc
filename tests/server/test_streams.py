"""Streams: events are equal to plain JSON for any text, and events ready together are sent with one write."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.chat_template.answer import AnswerForm
from rnn_engine.requests import GenerateRequest, TextDelta
from rnn_engine_server.apis.openai.chat import ChatDialect
from rnn_engine_server.apis.openai.completions import CompletionDialect
from rnn_engine_server.apis.openai.dialect import ChoicesDialect
from rnn_engine_server.apis.openai.schemas import ChatRequest, CompletionRequest
from rnn_engine_server.core.bodies import to_json
from rnn_engine_server.core.handlers import encode_event
from tests.support.fake_engine import FakeEngine
from tests.support.http import PIECES, Serve, events

CALLS = [GenerateRequest([1]), GenerateRequest([2])]


def dialects(include_usage: bool) -> Iterator[ChoicesDialect[Any]]:
    engine = FakeEngine(model='a "model"')
    fields = {"stream": True, "stream_options": {"include_usage": include_usage}}
    completion = CompletionRequest.parse(to_json({"prompt": "a", **fields}))
    yield CompletionDialect(engine, completion, CALLS, ["", ""])
    chat = ChatRequest.parse(to_json({"messages": {"role": "user", "content": "a"}, **fields}))
    yield ChatDialect(engine, chat, CALLS, AnswerForm())


@pytest.mark.parametrize("include_usage", [False, True])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: not text[0].isspace()))
def test_text_is_encoded_as_any_event(include_usage: bool, text: str) -> None:
    extra = {"usage": None} if include_usage else {}
    for dialect in dialects(include_usage):
        for index in (0, 1):
            dialect.event(index, TextDelta("a", ()), {})  # what follows is content
        for index in (0, 1, 0):
            plain = encode_event(dialect.chunk([dialect.text_chunk(index, text)], extra))
            assert dialect.event(index, TextDelta(text, ()), {}) == plain


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_json_does_not_have_are_errors(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"logprob": number})


@PIECES
async def test_events_that_are_ready_together_are_sent_with_one_write(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake engine's three answers advance in every turn of the event loop."""
    writes: list[bytes] = []
    write = web.StreamResponse.write

    async def note(response: web.StreamResponse, data: Any) -> None:  # noqa: ANN401
        writes.append(bytes(data))
        await write(response, data)

    monkeypatch.setattr(web.StreamResponse, "write", note)
    client = await serve(FakeEngine(reply=lambda _: "Hello", num_slots=3))
    response = await client.post("/v1/completions", json={"prompt": "a", "stream": True, "n": 3})
    chunks = events(await response.text())
    for index in range(3):
        texts = [choice["text"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert texts == [*"Hello", ""]
    assert len(chunks) == 18
    assert len(writes) < 18
    assert any(write.count(b"data: ") == 3 for write in writes)
