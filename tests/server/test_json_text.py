"""Parsing the JSON that clients send: whatever it has, the value is what Python's own parser returns."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rnn_engine.errors import InvalidRequestError
from rnn_engine_server.core import json_text
from rnn_engine_server.core.json_text import parse_json

LONG = 4096  # bytes of a list that numpy reads

numbers = st.integers(0, 999_999_999) | st.integers(0, 300)
spaces = st.sampled_from([",", ", ", " , ", ",\n"])


@st.composite
def long_lists(draw: st.DrawFn) -> str:
    """Draw the text of a list of whole numbers, long enough in most cases for numpy to read it."""
    some = draw(st.lists(numbers, min_size=1, max_size=8))
    return f"[{draw(spaces).join(map(str, some * draw(st.sampled_from([1, 600, 1400]))))}]"


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Draw a JSON text with lists of numbers, some of them long, some of them in strings."""
    leaf = long_lists() | long_lists().map(json.dumps) | st.sampled_from(["1.5", "null", '"[1,2]"', "[]", '["a"]'])
    inner = leaf | st.lists(leaf, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
    named = st.tuples(st.sampled_from(["prompt", "input", "a", "b"]), inner)
    parts = draw(st.lists(named, max_size=4))
    whole = ",".join(f'"{name}": {part}' for name, part in parts)
    return draw(st.sampled_from([f"{{{whole}}}", draw(inner)]))


@given(texts())
def test_long_lists_of_numbers_are_read_as_any_parser_reads_them(text: str) -> None:
    assert parse_json(text.encode(), "body") == json.loads(text)
    assert parse_json(bytearray(text.encode()), "body") == json.loads(text)


@pytest.mark.parametrize(
    "change",
    ["1,,2", "1, ,2", "1 2", ",1", "1,", "01", "1.5", "-1", "1e3", "1000000000", "9" * 30, "[1]", '"1"', "true", "x"],
)
@pytest.mark.parametrize("place", [0, 3000, 5999])
def test_any_slip_in_a_long_list_is_found(change: str, place: int) -> None:
    items = ["7"] * 6000
    items[place] = change
    text = f'{{"prompt": [{",".join(items)}], "more": [{",".join(["8"] * 6000)}]}}'
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(InvalidRequestError, match="body"):
            parse_json(text.encode(), "body")
    else:
        assert parse_json(text.encode(), "body") == expected


@pytest.mark.parametrize("end", ["", "]", "}", "1]}x", ",]}"])
def test_a_long_list_that_does_not_end_is_refused(end: str) -> None:
    with pytest.raises(InvalidRequestError, match="body"):
        parse_json(b'{"prompt": [' + b"1," * LONG + end.encode(), "body")


def test_after_a_list_that_only_looks_like_numbers_no_other_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a text of many, each without an end near it, would take the square of its length."""
    tried: list[NDArray[np.uint8]] = []
    read = json_text._read_numbers

    def read_numbers(text: NDArray[np.uint8]) -> json_text.WholeNumbers | None:
        tried.append(text)
        return read(text)

    monkeypatch.setattr(json_text, "_read_numbers", read_numbers)
    looks = b"[" + b"1," * LONG + b'"a"],'
    value = parse_json(b"[" + looks * 300 + b"0]", "body")
    assert value == [[*[1] * LONG, "a"]] * 300 + [0]
    assert len(tried) == 1


def test_infinite_numbers_are_found_beside_long_lists() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_json(b'{"prompt": [%b1], "a": [1, {"b": 1e309}]}' % (b"1," * LONG), "body")
    assert (caught.value.field, caught.value.value) == ("a.1.b", math.inf)
