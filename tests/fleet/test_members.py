"""The replicas that a front knows, and a replica's answers to its questions."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rnn_engine.fleet import members as fleet_members
from rnn_engine.fleet.members import Members
from rnn_engine.fleet.replica import Replica
from rnn_engine.fleet.routing import PrefixRouter
from rnn_engine.fleet.wire import pack_request, unpack_outcomes
from rnn_engine.requests import GenerateRequest, Started
from rnn_engine.telemetry import EngineCounters
from rnn_engine_states.cache.config import CacheStats, TierStats
from tests.support.fake_engine import FakeEngine
from tests.support.fleet import LocalLinks, until


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


async def test_a_replica_whose_stream_broke_off_counts_once_when_it_is_found_again() -> None:
    engine = FakeEngine()
    engine.counters().steps = 5
    links = LocalLinks({"a": engine})
    members = Members(links, "front", PrefixRouter())
    await members.survey()
    links.break_streams("a")
    await until(lambda: not members.takers)
    assert members.counters(EngineCounters()).steps == 5
    await members.survey()  # forgets it
    assert [member.name for member in members] == []
    assert members.counters(EngineCounters()).steps == 5
    engine.counters().steps = 7
    await members.survey()  # finds it again
    assert [member.name for member in members.takers] == ["a"]
    assert members.counters(EngineCounters()).steps == 7
    await members.close()


async def test_a_replica_that_one_survey_missed_counts_once() -> None:
    engines = {name: FakeEngine() for name in ("a", "b")}
    for engine in engines.values():
        engine.counters().steps = 5
    links = LocalLinks(engines)
    members = Members(links, "front", PrefixRouter())
    await members.survey()
    links.hidden |= {"a", "b"}
    await members.survey()
    links.hidden.clear()
    await members.survey()
    assert [member.name for member in members] == ["a", "b"]
    assert members.counters(EngineCounters()).steps == 10
    await members.close()


async def test_the_counters_of_many_replicas_that_are_gone_stay_in_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_members, "_MOST_GONE", 2)
    engines = {name: FakeEngine() for name in "abcde"}
    for steps, engine in enumerate(engines.values()):
        engine.counters().steps = 10**steps
    links = LocalLinks(engines)
    members = Members(links, "front", PrefixRouter())
    await members.survey()
    links.hidden |= set("abcd")
    await members.survey()
    assert members.counters(EngineCounters()).steps == 11111
    links.hidden.discard("d")
    await members.survey()
    assert members.counters(EngineCounters()).steps == 11111
    await members.close()


async def test_a_survey_that_is_cancelled_leaves_no_streams_of_replicas_that_are_gone() -> None:
    links = LocalLinks({"a": FakeEngine()})
    members = Members(links, "front", PrefixRouter())
    await members.survey()
    links.hidden.add("a")
    surveying = asyncio.create_task(members.survey())
    await asyncio.sleep(0)
    assert not list(members)
    surveying.cancel()
    await asyncio.wait((surveying,))
    await members.close()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


class _CountingEngine(FakeEngine):
    """An engine whose cache had some look-ups."""

    stats_of_cache: CacheStats

    def cache_stats(self) -> CacheStats:
        return self.stats_of_cache


def counting(look_ups: int) -> _CountingEngine:
    engine = _CountingEngine()
    engine.stats_of_cache = CacheStats((TierStats("host", 100, used=40, hits=look_ups),), look_ups, index_capacity=9)
    return engine


async def test_what_the_caches_of_replicas_that_are_gone_had_counted_stays_in_the_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_members, "_MOST_GONE", 2)
    links = LocalLinks({name: counting(10**number) for number, name in enumerate("abcde")})
    members = Members(links, "front", PrefixRouter())
    await members.survey()
    links.hidden |= set("abcd")
    await members.survey()
    total = CacheStats((TierStats("host", 100, used=40, hits=11111),), look_ups=11111, index_capacity=9)
    assert members.cache_stats() == total
    links.break_streams("e")
    await until(lambda: not members.takers)
    assert members.cache_stats() == total.without_sizes()
    links.hidden.discard("d")
    await members.survey()
    await members.survey()
    assert members.cache_stats() == replace(
        total, tiers=(TierStats("host", 200, used=80, hits=11111),), index_capacity=18
    )
    await members.close()


async def test_a_request_of_a_front_that_reads_no_stream_does_not_run() -> None:
    engine = FakeEngine()
    replica = Replica(engine, "a")
    call = pack_request(GenerateRequest(prompt=[1]), wait_for_room=False)
    await replica.run("front", 1, call)
    parcels = replica.parcels("front")
    assert unpack_outcomes(await anext(parcels)) == []  # nothing is left over from before
    await parcels.aclose()
    await replica.run("front", 2, call)
    assert engine.requests == []
    await replica.close()


@pytest.mark.parametrize("paused", [False, True])
async def test_requests_end_when_their_front_stops_reading(paused: bool) -> None:
    engine = FakeEngine(hold=2)
    replica = Replica(engine, "a")
    parcels = replica.parcels("front")
    await anext(parcels)
    call = pack_request(GenerateRequest(prompt=[1]), wait_for_room=False)
    running = asyncio.create_task(replica.run("front", 1, call))
    await engine.held.wait()
    if paused:
        await replica.hold("front", 1, True)
        engine.release.set()
        await until(lambda: engine.produced > 2)
    await parcels.aclose()
    engine.release.set()
    await asyncio.wait_for(running, 60)
    assert engine.active == 0
    assert engine.produced <= 3
    await replica.close()


async def test_the_earlier_stream_of_a_front_takes_nothing_from_the_next_one() -> None:
    replica = Replica(FakeEngine(), "a")
    earlier, later = replica.parcels("front"), replica.parcels("front")
    await anext(earlier)
    waiting = asyncio.ensure_future(anext(earlier))
    await anext(later)
    await replica.run("front", 1, pack_request(GenerateRequest(prompt=[1]), wait_for_room=False))
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert isinstance(unpack_outcomes(await anext(later))[0][1], Started)
    await replica.run("front", 2, pack_request(GenerateRequest(prompt=[1]), wait_for_room=False))
    assert unpack_outcomes(await anext(later))[0][0] == 2
    await later.aclose()
    await replica.close()
