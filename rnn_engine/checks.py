"""Checks of single values that several layers make."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from pathlib import PurePosixPath, PureWindowsPath

import numpy as np

from rnn_engine.errors import InvalidRequestError


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise InvalidRequestError unless `low` <= `value` <= `high`; NaN is refused."""
    if not low <= value <= high:
        raise InvalidRequestError(name, value, f"a number from {low} to {high}")


def check_finite(name: str, value: float | None) -> None:
    """Raise InvalidRequestError unless `value` is None or a finite number from 0 on."""
    if value is not None and not 0 <= value < math.inf:
        raise InvalidRequestError(name, value, "a finite number from 0 on")


def are_token_ids(tokens: Sequence[int], vocab_size: int) -> bool:
    """Whether `tokens` are ids of a vocabulary of `vocab_size` and no other integers than Python's own."""
    return len(tokens) == 0 or (set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < vocab_size)


def check_token_ids(name: str, tokens: Sequence[int], vocab_size: int) -> None:
    """Raise InvalidRequestError for the first of `tokens` that is no id of a vocabulary of `vocab_size`.

    The error names it by `name` and its position: "prompt token 3".
    """
    if are_token_ids(tokens, vocab_size):
        return  # a fifth of the time that looking for the first takes
    for position, token in enumerate(tokens):
        if not isinstance(token, int | np.integer) or not 0 <= token < vocab_size:
            raise InvalidRequestError(f"{name} {position}", token, f"a token id from 0 to {vocab_size - 1}")


def is_inner_path(text: str) -> bool:
    """Return True if `text` is a relative path that stays in the folder it is applied to, whatever the system.

    False for an absolute path, a drive of Windows, `..`, and what has control characters or is no Unicode. Links in the
    folder are not looked at.
    """
    posix, windows = PurePosixPath(text), PureWindowsPath(text)
    parts = (*posix.parts, *windows.parts)
    rooted = posix.is_absolute() or windows.drive or windows.root
    return text != "" and not rooted and ".." not in parts and not has_control_characters(text)


def has_control_characters(text: str) -> bool:
    """Return True if `text` has what no file name should have: control characters, or parts of a surrogate pair."""
    return any(unicodedata.category(character) in ("Cc", "Cs") for character in text)
