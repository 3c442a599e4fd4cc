"""The replicas that a front knows, and a replica's answers to its questions."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any, get_args

import pytest

from rnn_engine.errors import InvalidRequestError
from rnn_engine.fleet.members import Members
from rnn_engine.fleet.replica import Replica
from rnn_engine.fleet.routing import PrefixRouter
from rnn_engine.fleet.wire import Question, pack_question, unpack_answer
from rnn_engine.telemetry import EngineCounters
from tests.support.fake_engine import FakeEngine
from tests.support.fleet import LocalLinks


async def test_surveys_at_the_same_time_forget_the_same_replicas_once() -> None:
    engines = {name: FakeEngine() for name in ("a", "b", "c", "d")}
    for engine in engines.values():
        engine.counters().steps = 5
    links = LocalLinks(engines)
    members = Members(links, "front", PrefixRouter())
    await members.survey()
    assert [member.name for member in members] == ["a", "b", "c", "d"]
    links.hidden |= {"a", "b", "c"}
    await asyncio.gather(*(members.survey() for _ in range(3)))
    assert [member.name for member in members] == ["d"]
    assert members.counters(EngineCounters()).steps == 20  # each counts once
    await members.close()


@pytest.mark.parametrize("method", ["close", "__class__", "generate", "", ["cache_nodes"], None])
async def test_a_replica_answers_no_question_but_those_that_there_are(method: Any) -> None:  # noqa: ANN401
    engine = FakeEngine()
    replica = Replica(engine, "a")
    with pytest.raises(
        InvalidRequestError, match=r"question: .* is not allowed; expected one of cache_nodes, cache_tr"
    ):
        unpack_answer(await replica.ask(pickle.dumps((method, ()))))
    assert unpack_answer(await replica.ask(pack_question("drop_cache"))) == 0
    await replica.close()


def test_every_question_has_an_answer() -> None:
    replica = Replica(FakeEngine(), "a")
    assert set(replica._answers) == set(get_args(Question))
