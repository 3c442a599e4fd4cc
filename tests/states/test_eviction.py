"""Who gives way first, and that the bytes add up."""

from __future__ import annotations

import tracemalloc

from states.cache.checkpoint import Checkpoint, CheckpointKind, Tier
from states.cache.eviction import EvictionQueue


def entry(saves: int, hits: int = 0) -> Checkpoint:
    return Checkpoint("none", CheckpointKind.PROMPT_END, "", saves=saves, hits=hits)


def evict(ledger: EvictionQueue) -> Checkpoint | None:
    weakest = ledger.weakest()
    if weakest is not None:
        ledger.remove(weakest)
    return weakest


def test_bytes_are_counted_exactly() -> None:
    ledger = EvictionQueue(Tier.HOST, 100)
    first, second = entry(1), entry(1)
    ledger.add(first, 30)
    ledger.add(second, 50)
    assert (ledger.used, ledger.free, len(ledger)) == (80, 20, 2)
    assert first.sizes == {Tier.HOST: 30}
    ledger.remove(first)
    assert (ledger.used, ledger.free, len(ledger)) == (50, 50, 1)
    assert first.sizes == {}


def test_the_least_compute_saved_per_byte_goes_first() -> None:
    ledger = EvictionQueue(Tier.HOST, 1000)
    long, short, bulky = entry(100), entry(10), entry(100)
    ledger.add(long, 100)
    ledger.add(short, 100)
    ledger.add(bulky, 800)
    assert [evict(ledger), evict(ledger), evict(ledger), evict(ledger)] == [short, bulky, long, None]
    assert ledger.used == 0


def test_a_hit_raises_a_checkpoint_above_its_equals() -> None:
    ledger = EvictionQueue(Tier.HOST, 1000)
    old, new = entry(10), entry(10)
    ledger.add(old, 10)
    ledger.add(new, 10)
    old.hits += 1
    ledger.touch(old)
    assert evict(ledger) is new


def test_among_equals_the_longest_unused_goes_first() -> None:
    ledger = EvictionQueue(Tier.HOST, 1000)
    entries = [entry(10) for _ in range(3)]
    for checkpoint in entries:
        ledger.add(checkpoint, 10)
    ledger.touch(entries[0])
    assert [evict(ledger), evict(ledger), evict(ledger)] == [entries[1], entries[2], entries[0]]


def test_what_once_was_popular_leaves_in_the_end() -> None:
    ledger = EvictionQueue(Tier.HOST, 1000)
    popular = entry(10, hits=20)
    ledger.add(popular, 10)
    evicted = []
    for _ in range(100):
        ledger.add(entry(10), 10)
        evicted.append(evict(ledger))
    assert popular in evicted
    assert popular not in evicted[:19]


def test_held_checkpoints_stay_until_they_are_let_go() -> None:
    ledger = EvictionQueue(Tier.HOST, 1000)
    pinned, locked, free = entry(1), entry(2), entry(100)
    for checkpoint in (pinned, locked, free):
        ledger.add(checkpoint, 10)
    pinned.pinned, locked.locks = True, 1
    assert evict(ledger) is free
    assert ledger.weakest() is None
    locked.locks = 0
    ledger.touch(locked)
    assert evict(ledger) is locked


def test_many_touches_take_no_memory() -> None:
    ledger = EvictionQueue(Tier.HOST, 1000)
    kept = entry(1)
    ledger.add(kept, 10)
    tracemalloc.start()
    for _ in range(5000):
        ledger.touch(kept)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5000 * 16  # less than an entry a touch
    assert evict(ledger) is kept
