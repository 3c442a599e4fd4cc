"""Stop strings are found at every place and in bytes cut anywhere, and no other text is lost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.chat_template import ToolCall
from rnn_engine.chat_template.tools import ToolFormat, ToolFormats
from rnn_engine.scheduler.text import StopMatcher
from tests.support.plain_search import first_stop

few_bytes = st.text(alphabet="ab\n", max_size=30).map(str.encode)
stop_lists = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5).map(str.encode), max_size=4)


def cut_at(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


@settings(deadline=None)
@given(data=few_bytes, stops=stop_lists, cuts=st.lists(st.integers(0, 30)))
def test_what_is_found_is_what_a_plain_search_finds(data: bytes, stops: list[bytes], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    released = b""
    fed = b""
    for piece in cut_at(data, cuts):
        fed += piece
        released += matcher.feed(piece)
        _, match = first_stop(fed, stops)
        assert matcher.match == match
        if match is not None:
            break
        held = fed[len(released) :]
        could_become_one = [any(stop.startswith(held[at:]) for stop in stops) for at in range(len(held))]
        assert released + held == fed
        assert not held or could_become_one[0], "a byte is held back that can't begin a stop string"
        overlooked = max((n for stop in stops for n in range(len(stop)) if fed.endswith(stop[:n])), default=0)
        assert len(held) >= overlooked, "a byte was released that may begin a stop string"
    expected, match = first_stop(data, stops)
    assert matcher.match == match
    assert released + matcher.flush() == expected


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "match"),
    [
        ([b"Hi\n\n", b"\nUser", b": x"], [b"\n\nUser:"], b"Hi\n", b"\n\nUser:"),
        ([b"aab", b"aabaaac"], [b"aabaaac"], b"aab", b"aabaaac"),
        ([b"abcd"], [b"abcd", b"bc"], b"a", b"bc"),  # ends first
        ([b"xabc"], [b"bc", b"abc"], b"x", b"abc"),  # the longest of those that end here
        ([b"one\n", b"\n", b"two"], [b"\n\n"], b"one", b"\n\n"),
        ([b"\n", b"\n"], [b"\n\n"], b"", b"\n\n"),
        ([b"stop"], [], b"stop", None),
        ([b"sto"], [b"stop"], b"sto", None),
    ],
)
def test_overlapping_beginnings_and_several_stops(
    pieces: list[bytes], stops: list[bytes], text: bytes, match: bytes | None
) -> None:
    matcher = StopMatcher(stops)
    released = b""
    for piece in pieces:
        released += matcher.feed(piece)
        if matcher.match is not None:
            break
    assert (released + matcher.flush(), matcher.match) == (text, match)


def test_bytes_are_held_back_only_while_they_may_begin_a_stop() -> None:
    matcher = StopMatcher([b"\n\nUser:"])
    assert matcher.feed(b"Hi\n") == b"Hi"
    assert matcher.feed(b"\nU") == b""
    assert matcher.feed(b"p") == b"\n\nUp"


@pytest.mark.parametrize("format_", [ToolFormats.TAGGED.value, ToolFormats.JSON_PARAMETERS.value])
@pytest.mark.parametrize("stop", ["}", '"', "Paris", "\n", "b", ": {", "arguments", "end"])
def test_stop_strings_are_not_looked_for_in_calls(format_: ToolFormat, stop: str) -> None:
    call = format_.write([ToolCall("b", '{"city": "Paris} \\"\\n", "in": {"x": "end"}}')])
    text = f"So {call}{'' if stop == chr(10) else chr(10)}Good {stop} and"
    outside = text.removesuffix(f"{stop} and")
    for size in (1, 3, len(text)):
        matcher = StopMatcher([stop.encode()], format_)
        released = b""
        for begin in range(0, len(text), size):
            released += matcher.feed(text[begin : begin + size].encode())
            if matcher.match is not None:
                break
        cut = call.index("\n</tool_call>") + 3 if stop == "\n" and format_.closing else len(outside)
        released += matcher.flush()
        assert (released.decode(), matcher.match) == (text[:cut], stop.encode())


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(("text", "begins"), [("  a b", "  a"), (" a", " a"), ("\n a", "\n"), ("  ", "  ")])
def test_no_stop_begins_in_the_spaces_before_an_answer(text: str, begins: str, size: int) -> None:
    matcher = StopMatcher([b" "], strips=True)
    released = b""
    for begin in range(0, len(text), size):
        if matcher.match is None:
            released += matcher.feed(text[begin : begin + size].encode())
    assert (released + matcher.flush()).decode() == begins
    assert matcher.match == (None if text in (" a", "  ") else b" ")


def test_a_tag_without_a_call_is_text() -> None:
    matcher = StopMatcher([b"x"], ToolFormats.TAGGED.value)
    assert matcher.feed(b"<tool_call> is x") == b"<tool_call> is "
    assert matcher.match == b"x"
