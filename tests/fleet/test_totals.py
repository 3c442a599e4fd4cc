"""The counts of many replicas, added up to those of one engine."""

from __future__ import annotations

from rnn_engine.fleet.members import add_up
from rnn_engine_states.cache.config import CacheStats, TierStats
from rnn_engine_states.shared.config import StoreCounters, StoreOutcome


def test_counts_of_caches_are_added() -> None:
    first = CacheStats((TierStats("host", 100, used=40), TierStats("shared", 7)), look_ups=3)
    second = CacheStats((TierStats("host", 100, used=2),), look_ups=4, store=StoreCounters(read_bytes=5))
    total = add_up([first, second])
    assert total == CacheStats(
        (TierStats("host", 200, used=42), TierStats("shared", 7)), look_ups=7, store=StoreCounters(read_bytes=5)
    )


def test_counts_of_ways_to_a_store_are_added_and_one_that_is_left_alone_shows() -> None:
    first = StoreCounters(read_bytes=1, written_bytes=2, seconds=0.5, circuit_open=True, circuit_openings=1)
    second = StoreCounters(read_bytes=10, written_bytes=20, seconds=0.25, circuit_openings=2)
    first.outcomes[StoreOutcome.DONE], second.outcomes[StoreOutcome.DONE] = 3, 4
    expected = StoreCounters(read_bytes=11, written_bytes=22, seconds=0.75, circuit_open=True, circuit_openings=3)
    expected.outcomes[StoreOutcome.DONE] = 7
    assert add_up([first, None, second]) == expected
    assert add_up([None, None]) is None
