"""The project's exceptions, which pass from one process to another."""

from __future__ import annotations

import pickle
import threading
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.errors import (
    InvalidGrammarError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PromptTooLongError,
    RnnEngineError,
    TokenIds,
    UnavailableError,
    are_token_ids,
    hide_credentials,
    without_credentials,
)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("top_p", 1.5, "a number from 0 to 1"),
        InvalidGrammarError("grammar", "root ::=", "a gbnf that can be used", (1, 9)),
        PromptTooLongError("prompt", 70_000, 65_536, "at most 65536 tokens"),
        OverloadedError("8 requests are running", 0.25),
        UnavailableError("the device is opened again", 2.0),
        NotFoundError("there is no state 'story'"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_can_be_pickled(error: RnnEngineError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("valkey://ann:secret@host:1/2", "valkey://host:1/2"),
        ("valkey://ann:se/c@r#et@host", "valkey://host"),
        ("ann:secret@host", "host"),
        ("https://host/path", "https://host/path"),
    ],
)
def test_an_address_without_user_and_password(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "GET https://ann:sec@ret@host/a/b?sig=secret#x failed, s3://key@b too",
            "GET https://host/a/b failed, s3://b too",
        ),
        ("http://host:80/a@b, and a@b://c", "http://host:80/a@b, and a@b://c"),
        ("no address: ann@host", "no address: ann@host"),
    ],
)
def test_addresses_in_a_text_without_secret_parts(text: str, shown: str) -> None:
    assert hide_credentials(text) == shown


ids = st.lists(st.integers(0, 300), max_size=20)
others = st.sampled_from([[], [-1], [True], [np.int64(3)], [2**40]])


@given(tokens=ids, other=others, times=st.sampled_from([1, 1000]), size=st.integers(1, 301))
def test_token_ids_are_checked_alike_whether_the_answer_is_known_or_not(
    tokens: list[int], other: list[Any], times: int, size: int
) -> None:
    tokens = [*tokens * times, *other]
    expected = all(type(token) is int and 0 <= token < size for token in tokens)
    known = TokenIds(tokens)
    assert [are_token_ids(each, size) for each in (tokens, tuple(tokens), known, known)] == [expected] * 4
    assert are_token_ids(known, 301) == (not other)


@given(ids)
def test_token_ids_are_packed_as_unsigned_words(tokens: list[int]) -> None:
    packed = TokenIds(tokens * 1000)
    assert packed.packed == packed.packed == array("I", tokens * 1000).tobytes()


def test_nobody_waits_while_the_ids_of_another_are_looked_through() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Long(TokenIds):
        def __getitem__(self, key: Any) -> Any:  # noqa: ANN401
            begun.set()
            assert go_on.wait(30)
            return super().__getitem__(key)

    for look in (lambda tokens: are_token_ids(tokens, 9), lambda tokens: tokens.packed):
        begun.clear()
        go_on.clear()
        long = threading.Thread(target=look, args=(Long([1, 2]),))
        long.start()
        assert begun.wait(30)
        other = threading.Thread(target=look, args=(TokenIds([1, 2]),))
        other.start()
        other.join(10)
        waits = other.is_alive()
        go_on.set()
        long.join(30)
        other.join(30)
        assert not waits
