"""Parse the JSON that clients send, without stopping all other threads for long."""

from __future__ import annotations

import codecs
import math
import re
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from rnn_engine.errors import InvalidRequestError
from rnn_engine.pauses import pause

_GREAT_EXPONENT = re.compile(rb"(?<=[0-9])[eE]\+?[0-9]{3}")
_MANY_DIGITS = 200
_PIECE = 1 << 13  # bytes that are searched at a time, or numbers that are converted: either stops all other threads
_LONG_LIST = re.compile(rb"\[[0-9, ]{4096}")
_MOST_DIGITS = 9  # of a number in a list that numpy reads: it fits 32 bits


class WholeNumbers(list[int]):
    """A list of JSON that has only whole numbers, none of them negative."""

    greatest: int


def parse_json(text: bytes | bytearray, what: str) -> Any:  # noqa: ANN401
    """Return the value of a client's JSON text. Raises InvalidRequestError, in which `what` names the text.

    A byte-order mark before the text is skipped. A number that is too great for a float is refused wherever it stands,
    so that every value can be written as JSON.
    """
    if text.startswith(codecs.BOM_UTF8):
        text = text[len(codecs.BOM_UTF8) :]
    shorter, lists = _take_out_lists(text)
    try:
        try:
            value = from_json(shorter, allow_inf_nan=False)
        except ValueError:
            if not lists:
                raise
            shorter, lists = text, {}  # a list stood in a string, or the text is no JSON
            value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequestError(what, text[:100].decode(errors="replace"), f"JSON ({error})") from None
    pieces = (shorter[start : start + _PIECE + _MANY_DIGITS] for start in range(0, len(shorter), _PIECE))
    if any(map(_may_be_infinite, pieces)) and (found := _find_infinite(value)) is not None:
        raise InvalidRequestError(found.removeprefix(".") or what, math.inf, "a number that fits a 64-bit float")
    return _put_back(value, lists) if lists else value


def _may_be_infinite(text: bytes | bytearray) -> bool:
    """Return True if a number in a JSON text may be 1e300 or more: three digits of exponent, or over 200 in a row."""
    if _GREAT_EXPONENT.search(text):
        return True
    others = np.flatnonzero(np.frombuffer(text, np.uint8) - ord("0") > 9)  # what is less than "0" wraps around
    return bool(np.diff(others, prepend=-1, append=len(text)).max() > _MANY_DIGITS)


def _find_infinite(value: object, place: str = "") -> str | None:
    """Return the place of an infinite number in a value, such as `.messages.0.weight`, or None."""
    if isinstance(value, float):
        return place if math.isinf(value) else None
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next((found for name, part in parts if (found := _find_infinite(part, f"{place}.{name}"))), None)


# Long lists of token ids. A parser stops all other threads, with a million ids for 80 ms; numpy lets them run.


def _take_out_lists(text: bytes | bytearray) -> tuple[bytes | bytearray, dict[str, WholeNumbers]]:
    """Return a JSON text in which names stand for the numbers of its long lists, and those numbers by name.

    If such a list stands in a string, the returned text is no JSON. No client can guess the names.
    """
    pieces, lists, done, secret = list[bytes | bytearray](), dict[str, WholeNumbers](), 0, secrets.token_hex()
    while (found := _LONG_LIST.search(text, done)) is not None:
        first, after = found.start() + 1, text.find(b"]", found.end())
        numbers = None if after < 0 else _read_numbers(np.frombuffer(text, np.uint8, after - first, first))
        if numbers is None:
            break
        name = f"{secret}.{len(lists)}"
        lists[name] = numbers
        pieces += text[done:first], f'"{name}"'.encode()
        done = after
    return (b"".join([*pieces, text[done:]]) if lists else text), lists


def _read_numbers(text: NDArray[np.uint8]) -> WholeNumbers | None:
    """Return the whole numbers that commas separate in a text; None if it has anything else, or longer numbers."""
    is_digit = text - ord("0") <= 9  # what is less than "0" wraps around
    is_comma = text == ord(",")
    edges = np.flatnonzero(np.diff(is_digit, prepend=False, append=False))
    first, after, commas = edges[::2], edges[1::2], np.flatnonzero(is_comma)
    sizes = after - first
    if (
        not (is_digit | is_comma | (text == ord(" "))).all()
        or len(commas) != len(first) - 1
        or (commas < after[:-1]).any()
        or (commas > first[1:]).any()
        or sizes.max() > _MOST_DIGITS
        or ((text[first] == ord("0")) & (sizes > 1)).any()
    ):
        return None
    numbers = np.zeros(len(first), np.int32)
    for place in range(int(sizes.max())):
        pause()
        digits = text[np.minimum(first + place, after - 1)] - ord("0")
        numbers = np.where(sizes > place, numbers * 10 + digits, numbers)
    read = WholeNumbers()
    read.greatest = int(numbers.max())
    for start in range(0, len(numbers), _PIECE):
        pause()
        read += numbers[start : start + _PIECE].tolist()
    return read


def _put_back(value: object, lists: Mapping[str, WholeNumbers]) -> object:
    """Return a value with the numbers of the lists in which their names stand."""
    if isinstance(value, dict):
        for name, part in value.items():
            value[name] = _put_back(part, lists)
    elif isinstance(value, list):
        if len(value) == 1 and isinstance(value[0], str) and value[0] in lists:
            return lists[value[0]]
        for place, part in enumerate(value):
            value[place] = _put_back(part, lists)
    return value
