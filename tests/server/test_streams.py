"""Streams: events are equal to plain JSON for any text, and events ready together are sent with one write."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.chat_template.answer import AnswerForm
from rnn_engine.requests import GenerateRequest, TextDelta
from rnn_engine_server.apis.common.answering import Prepared
from rnn_engine_server.apis.common.states import ResolvedState
from rnn_engine_server.apis.openai.chat import ChatDialect
from rnn_engine_server.apis.openai.completions import CompletionDialect
from rnn_engine_server.apis.openai.dialect import ChoicesDialect
from rnn_engine_server.apis.openai.schemas import ChatRequest, CompletionRequest
from rnn_engine_server.core.bodies import to_json
from rnn_engine_server.core.handlers import SSE
from tests.support.fake_engine import FakeEngine
from tests.support.http import PIECES, Serve, events


def dialects(include_usage: bool) -> Iterator[ChoicesDialect[Any]]:
    call: Any = SimpleNamespace(engine=FakeEngine(model='a "model"'))
    requests, start = [GenerateRequest([1]), GenerateRequest([2])], ResolvedState(None)
    fields = {"stream": True, "stream_options": {"include_usage": include_usage}}
    completion = CompletionRequest.parse(to_json({"prompt": "a", **fields}))
    yield CompletionDialect(Prepared(call, completion, requests, start), ["", ""])
    chat = ChatRequest.parse(to_json({"messages": {"role": "user", "content": "a"}, **fields}))
    yield ChatDialect(Prepared(call, chat, requests, start, AnswerForm()))


@pytest.mark.parametrize("include_usage", [False, True])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: not text[0].isspace()))
def test_text_is_encoded_as_any_event(include_usage: bool, text: str) -> None:
    for dialect in dialects(include_usage):
        for index in (0, 1):
            list(dialect.events(index, TextDelta("a", ()), {}))  # what follows is content
        for index in (0, 1, 0):
            plain = b"data: %b\n\n" % to_json(dialect.text_event(index, text))
            assert SSE.encode(dialect.events(index, TextDelta(text, ()), {})) == plain


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
