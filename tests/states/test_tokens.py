"""Packed tokens compare as lists of tokens do."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine_states.tokens import pack, shared_tokens, unpack

TOKENS = st.lists(st.sampled_from([0, 1, 255, 256, 65535, 2**32 - 1]), max_size=12)


@given(TOKENS)
def test_unpack_gives_back_what_was_packed(tokens: list[int]) -> None:
    packed = pack(tokens)
    assert unpack(packed) == tokens
    assert len(packed) == 4 * len(tokens)


@given(TOKENS, TOKENS, TOKENS)
def test_shared_tokens_is_the_common_prefix(shared: list[int], first: list[int], second: list[int]) -> None:
    first, second = shared + first, shared + second
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    assert shared_tokens(pack(first), pack(second)) == len(list(same))


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_that_does_not_fit_is_refused(token: int) -> None:
    with pytest.raises(OverflowError):
        pack([token])
