"""Checks that several layers make: the refused values, and their errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rnn_engine.errors import InvalidRequestError, check_range, check_token_ids, is_inner_path


@pytest.mark.parametrize("tokens", [[], [0, 4], range(5), np.array([0, 4], np.int32), np.array([4], np.uint64)])
def test_ids_inside_the_vocabulary_are_let_through(tokens: Sequence[int]) -> None:
    check_token_ids("token", tokens, 5)


@pytest.mark.parametrize("bad", [-1, 5, 2**70, 1.0, "1", None, np.int64(-1), np.float32(1.0)])
def test_the_first_that_is_no_id_is_refused_by_its_position(bad: Any) -> None:  # noqa: ANN401
    with pytest.raises(InvalidRequestError) as raised:
        check_token_ids("prompt token", [0, bad, -7], 5)
    assert raised.value.field == "prompt token 1"
    assert str(raised.value).endswith(" is not allowed; expected a token id from 0 to 4")


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, 10**400])
def test_numbers_outside_the_range_are_refused(value: float) -> None:
    with pytest.raises(InvalidRequestError, match=r"top_p: .* expected a number from 0 to 1"):
        check_range("top_p", value, 0, 1)


@pytest.mark.parametrize("value", [0, 0.5, 1])
def test_both_ends_of_the_range_are_inside(value: float) -> None:
    check_range("top_p", value, 0, 1)


@pytest.mark.parametrize(
    "text", ["a", "a/b.st", "./a", "a//b", "...", "a..b", "ab:c", ".", "./", "Grüße/全角　空白.st", "👩‍💻"]
)
def test_paths_that_stay_in_their_folder(text: str) -> None:
    assert is_inner_path(text)


@pytest.mark.parametrize(
    "text",
    ["", "..", "../a", "a/..", "a/../../b", "/a", "//a/b", "\\a", "a\\..\\..\\b", "C:a", "C:\\a", "\\\\host\\a\\b",
     "a\0", "a\nb", "\x1b[2J", "\x7f", "\x85", "\ud800"],
)  # fmt: skip
def test_paths_that_leave_their_folder_or_are_none(text: str) -> None:
    assert not is_inner_path(text)
