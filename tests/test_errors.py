"""The project's exceptions, which pass from one process to another."""

from __future__ import annotations

import pickle

import pytest

from rnn_engine.errors import (
    InvalidGrammarError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PromptTooLongError,
    RnnEngineError,
    UnavailableError,
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
