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
