"""Requests whose time is up end with the text that they have, or with an error if they have none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rnn_engine.errors import OverloadedError, TimeLimitError
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Clients
from tests.support.fake_runner import FakeRunner, scripted_logits

TOKENIZER = ByteTokenizer()
LATE = TimeLimitError("late")
PROMPT = TOKENIZER.encode("Hi")


def make(says: str = "x" * 100, num_slots: int = 1) -> Clients:
    logits = scripted_logits(TOKENIZER.size, TOKENIZER.encode(says))
    return Clients(FakeRunner(logits, num_slots=num_slots), TOKENIZER.decode_bytes)


def request(max_tokens: int = 50, stop: tuple[bytes, ...] = (), keep_end: bool = False) -> GenerateRequest:
    return GenerateRequest(
        PROMPT, max_tokens=max_tokens, stop=stop, keep_end=keep_end, sampling=SamplingParams(temperature=0.0, seed=0)
    )


@pytest.mark.parametrize("keep_end", [False, True])
def test_the_text_ends_where_it_is(keep_end: bool) -> None:
    clients = make()
    key = clients.send(request(keep_end=keep_end))
    heard = clients.heard[key]
    while len(heard.tokens) < 5:
        clients.step()
    clients.take(clients.scheduler.expire(key, LATE))
    assert clients.run() == 1
    assert (heard.text, heard.finished.reason, heard.finished.completion_tokens) == ("xxxxx", "length", 5)
    if keep_end:
        assert heard.finished.end is not None
        assert heard.finished.end.tokens == (*PROMPT, *TOKENIZER.encode("xxxxx"))


def test_what_was_held_back_of_the_text_comes_too() -> None:
    clients = make("ab")
    key = clients.send(request(stop=(b"abc",)))
    while len(clients.heard[key].tokens) < 2:
        clients.step()
    assert clients.heard[key].text == ""
    clients.scheduler.expire(key, LATE)
    clients.run()
    assert clients.heard[key].text == "ab"
    assert isinstance(clients.heard[key].events[-1], Finished)


def test_without_a_token_it_is_an_error_and_the_slot_is_free() -> None:
    clients = make()
    running = clients.send(replace(request(), prompt=PROMPT * clients.runner.max_tokens))
    waiting, last = clients.send(request()), clients.send(request(max_tokens=3))
    clients.step()
    assert clients.scheduler.num_live == 1
    for key in (running, waiting):
        clients.take(clients.scheduler.expire(key, LATE))
        assert clients.heard[key].error is LATE
    clients.run()
    assert clients.heard[last].text == "xxx"


def test_only_a_request_that_waits_is_withdrawn() -> None:
    clients = make()
    running, waiting = clients.send(request(max_tokens=3)), clients.send(request())
    clients.step()
    full = OverloadedError("full", 1)
    for key in (running, waiting):
        clients.take(clients.scheduler.withdraw(key, full))
    clients.run()
    assert clients.heard[running].text == "xxx"
    assert clients.heard[waiting].error is full


def test_what_has_ended_hears_nothing() -> None:
    clients = make()
    key = clients.send(request(max_tokens=3))
    clients.run()
    assert clients.scheduler.expire(key, LATE) == clients.scheduler.withdraw(key, LATE) == []
