"""The inputs that a step accepts. The runners' contract has the refusals common to all runners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward.contract import allowed_tokens, check_batch
from rnn_engine.types import TokenRun
from tests.support.models import tiny_shape

SHAPE = tiny_shape(vocab=96)


def check(*runs: TokenRun) -> None:
    check_batch(runs, SHAPE, num_slots=4, max_tokens=8, max_rows=4)


def test_the_limits_themselves_are_allowed() -> None:
    check(TokenRun(3, [0, 95, 95], rows=3, targets=[0, 95, 1]), TokenRun(0, [1, 2, 3, 4, 5], rows=1))


def test_ids_may_be_numpys() -> None:
    check(TokenRun(0, np.array([1, 2], np.uint16)), TokenRun(1, [np.int32(1), 2]))  # type: ignore[arg-type, list-item]


@pytest.mark.parametrize(
    ("tokens", "position"), [([1, 2.0], 1), ([1.5], 0), (["a"], 0), ([1, None], 1), ([0, 10**30], 1), ([1, 2, -5], 2)]
)
def test_what_is_no_token_id_is_refused_by_its_place(tokens: Sequence[Any], position: int) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check(TokenRun(0, tokens))
    assert caught.value.field == f"run 0: token {position}"
    assert caught.value.value == tokens[position]
    assert caught.value.allowed == "a token id from 0 to 95"


@pytest.mark.parametrize("rows", [-1, 3])
def test_rows_are_of_the_runs_tokens(rows: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"run 1: rows: -?\d is not allowed; expected a number from 0 to 2"):
        check(TokenRun(1, [1]), TokenRun(0, [1, 2], rows=rows))


def test_totals_are_over_all_runs() -> None:
    with pytest.raises(InvalidRequestError, match="batch tokens: 9 is not allowed; expected at most 8 over all runs"):
        check(TokenRun(0, [1] * 5), TokenRun(1, [1] * 4))
    with pytest.raises(InvalidRequestError, match="batch rows: 5 is not allowed; expected at most 4 over all runs"):
        check(TokenRun(0, [1] * 3, rows=3), TokenRun(1, [1] * 2, rows=2))


@pytest.mark.parametrize("vocab", [5, 31, 32, 33, 64, 96])
def test_bits_beyond_the_vocabulary_allow_nothing(vocab: int) -> None:
    words = -(-vocab // 32)
    for token in range(32 * words):
        masks = np.zeros((1, words), np.uint32)
        masks[0, token // 32] = 1 << token % 32
        allowed = allowed_tokens([TokenRun(0, [1], rows=1)], [masks], vocab)
        assert np.flatnonzero(allowed).tolist() == ([token] if token < vocab else [])
