"""Text comes in whole characters, and no byte stalls it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.chat_template.tools import ToolFormats
from rnn_engine.scheduler.text import TextStream


@given(text=st.text(alphabet="aé€😀\n\0", max_size=20))
def test_characters_are_never_split(text: str) -> None:
    stream = TextStream(())
    pieces = [stream.feed(bytes([byte])) for byte in text.encode()]
    assert [piece for piece in pieces if piece] == list(text)
    assert stream.flush() == ""


@given(data=st.binary(max_size=20), stops=st.lists(st.binary(min_size=1, max_size=2), max_size=1))
def test_any_bytes_become_the_text_that_they_are_at_once(data: bytes, stops: list[bytes]) -> None:
    stream = TextStream(stops)
    text = ""
    for byte in data:
        text += stream.feed(bytes([byte]))
        if stream.match is not None:
            break
    expected = data.split(stops[0])[0] if stops else data
    assert text + stream.flush() == expected.decode("utf-8", errors="replace")


def test_a_call_that_begins_where_no_stop_string_counts_yet_has_none() -> None:
    stream = TextStream([b"}"], ToolFormats.TAGGED.value)
    text = stream.feed(b'<tool_call>\n{"name": "a", ', may_stop=False) + stream.feed(b'"arguments": {}}\nx}')
    assert (text, stream.match) == ('<tool_call>\n{"name": "a", "arguments": {}}\nx', b"}")


def test_an_invalid_byte_does_not_hold_up_what_follows() -> None:
    stream = TextStream(())
    assert [stream.feed(bytes([byte])) for byte in b"\xe2A\xffB"] == ["", "\ufffdA", "\ufffd", "B"]


def test_an_unfinished_character_is_told_at_the_end() -> None:
    stream = TextStream(())
    assert stream.feed("é".encode()[:1]) == ""
    assert stream.flush() == "\ufffd"


def test_a_stop_string_cuts_the_text_even_inside_a_token() -> None:
    stream = TextStream([b"END"])
    assert stream.feed("süß EN".encode()) == "süß "
    assert stream.feed(b"Dgame") == ""
    assert stream.match == b"END"
