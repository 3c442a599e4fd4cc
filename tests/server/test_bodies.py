"""Every body that a client sends is parsed or refused as an invalid request, without any other exception."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.errors import InvalidRequestError
from server.apis.engine.tokens import DetokenizeRequest, TokenizeRequest
from server.apis.openai.schemas import ChatRequest, CompletionRequest
from server.core.schema import RequestBody

KINDS: list[type[RequestBody]] = [CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest]

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
names = st.text(max_size=5) | st.sampled_from(["role", "content", "type", "text", "user", "record", "1", "-1", "²"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[type[RequestBody], dict[str, Any]]:
    """Draw a body with known fields, some of them with valid values."""
    kind = draw(st.sampled_from(KINDS))
    sound: dict[str, Any] = {
        "prompt": "a",
        "messages": [{"role": "user", "content": "a"}],
        "content": "a",
        "tokens": [1],
    }
    fields: dict[str, Any] = {name: value for name, value in sound.items() if name in kind.model_fields}
    known = st.sampled_from(sorted({*kind.model_fields, *kind.aliases, *kind.ignored, *kind.neutral}))
    return kind, fields | draw(st.dictionaries(known, values, max_size=3))


@given(bodies())
def test_any_value_of_any_field(sent: tuple[type[RequestBody], dict[str, Any]]) -> None:
    kind, body = sent
    with suppress(InvalidRequestError):
        kind.parse(json.dumps(body).encode())


@given(st.sampled_from(KINDS), st.binary(max_size=30) | values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(kind: type[RequestBody], body: bytes) -> None:
    with suppress(InvalidRequestError):
        kind.parse(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "a", "logit_bias": {"' + b"9" * 5000 + b'": 1}}',
        b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"prompt": [' + b"9" * 5000 + b"]}",
        b'{"prompt": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"prompt": "a", "seed": 1.0}',
    ],
)
def test_monsters(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        CompletionRequest.parse(body)
