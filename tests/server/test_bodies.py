"""Every body that a client sends is parsed or refused as an invalid request, without any other exception.

Those of answers are what Python's own `json` writes.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.errors import InvalidRequestError
from rnn_engine_server.apis.engine.tokens import DetokenizeRequest, TokenizeRequest
from rnn_engine_server.apis.openai.schemas import ChatRequest, CompletionRequest
from rnn_engine_server.core.bodies import encode_pieces, to_json
from rnn_engine_server.core.schema import RequestBody

KINDS: list[type[RequestBody]] = [CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest]

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
names = st.text(max_size=5) | st.sampled_from(["role", "content", "type", "text", "user", "record", "1", "-1", "²"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
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


@given(values)
def test_an_answer_is_read_as_what_it_was_made_of(value: object) -> None:
    assert json.loads(to_json(value)) == value


@pytest.mark.parametrize(
    "value", ["NaN", {"a": "-Infinity"}, 'é\u2028\x00\x1f"\\', [2**70, 1e-7, 1e22, True, None], {}]
)
def test_a_text_that_spells_no_number_is_a_text(value: object) -> None:
    assert json.loads(to_json(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        {"data": [{"vector": [0.5] * 5000, "é": "ö"}] * 3, "model": "m"},
        [[1, 2]] * 3000,
        list(range(5000)),
        [{"a": [[[[[[1]]]]]]}, [], {}],
        [],
        {},
        [5, [6], {"a": 7}],
        "text" * 5000,
    ],
)
def test_a_long_answer_is_the_same_in_pieces(value: object) -> None:
    assert b"".join(encode_pieces(value)) == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
