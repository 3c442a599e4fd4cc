"""The reader of CBOR gives what the cbor2 package gives, byte strings as their positions, and refuses other kinds."""

from __future__ import annotations

import math
import uuid
from decimal import Decimal

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.errors import ModelError
from rnn_engine.tensor_files.prefab_file import ByteString, read_items
from rnn_engine.tensor_files.source import MemoryFile

NUMBERS = st.integers(-(2**64), 2**64 - 1)
PLAIN = st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=20) | st.binary(max_size=300)
ITEMS = st.recursive(
    PLAIN,
    lambda items: st.lists(items, max_size=30) | st.dictionaries(st.text(max_size=5) | NUMBERS, items),
    max_leaves=20,
)


def read(data: bytes) -> object:
    return with_bytes(read_items(MemoryFile("file", data)), data)


def with_bytes(item: object, data: bytes) -> object:
    """Return an item with its byte strings in place of their positions."""
    match item:
        case ByteString(start, size):
            return data[start : start + size]
        case list():
            return [with_bytes(each, data) for each in item]
        case dict():
            return {key: with_bytes(each, data) for key, each in item.items()}
    return item


@given(ITEMS)
def test_items_are_those_of_cbor2(item: object) -> None:
    data = cbor2.dumps(item)
    assert repr(read(data)) == repr(cbor2.loads(data))  # NaN is not equal to itself


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"\xf9\x3c\x00", 1.0), (b"\xf9\x7c\x00", math.inf), (b"\xfa\x3f\x80\x00\x00", 1.0), (b"\xf7", None)],
)
def test_short_numbers_and_no_value(data: bytes, value: object) -> None:
    assert read(data) == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "1 bytes from 0 on; expected an end within its 0 bytes"),
        (cbor2.dumps(uuid.UUID(int=5)), "byte 0 begins no number, text"),
        (cbor2.dumps([Decimal(5)]), "byte 1 begins no number, text"),
        (b"\x9f\xff", "byte 0 begins no number"),
        (b"\x5f\x41a\xff", "byte 0 begins no number"),
        (b"\xf8\x20", "byte 0 begins no number"),
        (b"\xe0", "byte 0 begins no number"),
        (b"\x1c", "byte 0 begins no number"),
        (b"\x42a", "2 bytes from 1 on; expected an end within its 2 bytes"),
        (b"\x9b" + b"\xff" * 8, "a list of 18446744073709551615 items at byte 9"),
        (b"\xa1\x41a\x00", "a key is neither a text nor a number"),
        (b"\x61\xff", "the text before byte 2 is no UTF-8"),
        (cbor2.dumps("a" * 5000), "a text of 5000 bytes; expected at most 4096"),
        (b"\x81" * 20 + b"\x00", "they lie more than 16 deep"),
        (b"\x00\x00", "its content ends at byte 1 of 2"),
    ],
)
def test_what_is_damaged_or_of_another_kind_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=f"^file: damaged or truncated CBOR file: .*{message}"):
        read(data)


def test_the_number_of_items_is_bounded() -> None:
    data = cbor2.dumps([0] * 100)
    assert read_items(MemoryFile("file", data), 101) == [0] * 100
    with pytest.raises(ModelError, match="more than 100 items"):
        read_items(MemoryFile("file", data), 100)
