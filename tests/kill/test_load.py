"""Clients of a disturbed fleet notice every wrong token, and count errors that allow a retry separately."""

from __future__ import annotations

from random import Random

import pytest
from pytest_aiohttp.plugin import AiohttpClient

from rnn_engine.errors import OverloadedError, RnnEngineError, UnavailableError
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import ServerSettings
from tests.support.fake_engine import FakeEngine, encode
from tools.kill.load import Load, Lost, Question, Tally

BODY = {"prompt": "Hi", "max_tokens": 64, "seed": 7, "return_token_ids": True}
RIGHT = encode(" Hello there!")
WRONG = [*RIGHT[:5], 9, *RIGHT[6:]]


async def asked(client: AiohttpClient, engine: FakeEngine, tokens: list[int], *, streams: bool) -> Tally:
    """Return the tally of one question with the right answer `tokens`."""
    found = await client(make_app(engine, ServerSettings()))
    load = Load(str(found.make_url("")).rstrip("/"), found.session, [], Random(0))
    tally = load.begin("part")
    await load.ask(Question(BODY, tokens), streams=streams)
    return tally


@pytest.mark.parametrize("streams", [False, True])
async def test_wrong_tokens_are_noticed(aiohttp_client: AiohttpClient, streams: bool) -> None:
    right = await asked(aiohttp_client, FakeEngine(), RIGHT, streams=streams)
    assert (right.answered, right.wrong, right.lost) == (1, [], [])
    wrong = await asked(aiohttp_client, FakeEngine(), WRONG, streams=streams)
    assert (wrong.answered, wrong.wrong) == (1, [f"7: {RIGHT}, not {WRONG}"])


@pytest.mark.parametrize(
    ("error", "retryable"),
    [(UnavailableError("the store does not answer", 1.0), True), (OverloadedError("full", 1.0), False)],
)
async def test_a_refusal_is_counted_with_its_kind(
    aiohttp_client: AiohttpClient, error: RnnEngineError, retryable: bool
) -> None:
    tally = await asked(aiohttp_client, FakeEngine(refuse=error), RIGHT, streams=False)
    assert (tally.requests, tally.answered) == (1, 0)
    assert tally.lost == [Lost(False, str(error), retryable, 0)]
    assert tally.errors == {str(error): 1}


async def test_what_came_before_an_error_must_be_right(aiohttp_client: AiohttpClient) -> None:
    tally = await asked(aiohttp_client, FakeEngine(fail_at=7), WRONG, streams=True)
    [lost] = tally.lost
    assert (lost.retryable, lost.tokens) == (False, 7)
    assert tally.wrong == [f"7: {RIGHT[:7]}, not {WRONG[:7]}"]
