"""Streams: events are equal to plain JSON for any text, and events ready together are sent with one write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.chat_template.answer import AnswerForm
from rnn_engine.requests import GenerateRequest, TextDelta
from rnn_engine_server.apis.common.answering import ChoiceFormatter
from rnn_engine_server.apis.openai.chat import ChatFormatter
from rnn_engine_server.apis.openai.completions import CompletionFormatter
from rnn_engine_server.apis.openai.dialect import ChunkEncoder, ResponseEnvelope
from rnn_engine_server.apis.openai.schemas import ChatRequest, CompletionRequest
from rnn_engine_server.core.bodies import to_json
from rnn_engine_server.core.streams import encode_event
from tests.support.fake_engine import FakeEngine
from tests.support.http import PIECES, Serve, events

CHAT = ChatRequest.parse(b'{"messages": {"role": "user", "content": "a"}}')
CALLS = [GenerateRequest([1]), GenerateRequest([2])]
FORMATTERS: Sequence[ChoiceFormatter] = (
    CompletionFormatter(FakeEngine(), CompletionRequest.parse(b'{"prompt": "a"}'), CALLS, ["", ""]),
    ChatFormatter(
        FakeEngine(), ChatRequest.parse(b'{"messages": {"role": "user", "content": "a"}}'), CALLS, AnswerForm()
    ),
)


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("formatter", FORMATTERS)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: not text[0].isspace()))
def test_text_is_encoded_as_any_event(formatter: ChoiceFormatter, include_usage: bool, text: str) -> None:
    envelope = ResponseEnvelope(replace(FakeEngine().info, model='a "model"'), formatter)
    encoder = ChunkEncoder(envelope, formatter, CALLS, include_usage=include_usage)
    extra = {"usage": None} if include_usage else {}
    for index in (0, 1, 0):
        plain = encode_event(envelope.chunk([formatter.text_chunk(index, text)], extra))
        assert encoder.encode(index, TextDelta(text, ())) == plain


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
