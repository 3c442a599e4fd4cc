"""The order of evictions, and the sums of bytes."""

from __future__ import annotations

import tracemalloc

from rnn_engine_states.cache.checkpoint import Checkpoint, CheckpointKind
from rnn_engine_states.cache.eviction import EvictionQueue


def entry(saves: int, hits: int = 0) -> Checkpoint:
    return Checkpoint("none", CheckpointKind.PROMPT_END, saves=saves, hits=hits)


def evict(queue: EvictionQueue) -> Checkpoint | None:
    weakest = queue.weakest()
    if weakest is not None:
        queue.remove(weakest)
    return weakest


def test_bytes_are_counted_exactly() -> None:
    queue = EvictionQueue("host", 100)
    first, second = entry(1), entry(1)
    queue.add(first, 30)
    queue.add(second, 50)
    assert (queue.used, queue.free, len(queue)) == (80, 20, 2)
    assert first.sizes == {"host": 30}
    queue.remove(first)
    assert (queue.used, queue.free, len(queue)) == (50, 50, 1)
    assert first.sizes == {}


def test_the_least_compute_saved_per_byte_goes_first() -> None:
    queue = EvictionQueue("host", 1000)
    long, short, bulky = entry(100), entry(10), entry(100)
    queue.add(long, 100)
    queue.add(short, 100)
    queue.add(bulky, 800)
    assert [evict(queue), evict(queue), evict(queue), evict(queue)] == [short, bulky, long, None]
    assert queue.used == 0


def test_a_hit_raises_a_checkpoint_above_its_equals() -> None:
    queue = EvictionQueue("host", 1000)
    old, new = entry(10), entry(10)
    queue.add(old, 10)
    queue.add(new, 10)
    old.hits += 1
    queue.touch(old)
    assert evict(queue) is new


def test_among_equals_the_longest_unused_goes_first() -> None:
    queue = EvictionQueue("host", 1000)
    entries = [entry(10) for _ in range(3)]
    for checkpoint in entries:
        queue.add(checkpoint, 10)
    queue.touch(entries[0])
    assert [evict(queue), evict(queue), evict(queue)] == [entries[1], entries[2], entries[0]]


def test_what_once_was_popular_leaves_in_the_end() -> None:
    queue = EvictionQueue("host", 1000)
    popular = entry(10, hits=20)
    queue.add(popular, 10)
    evicted = []
    for _ in range(100):
        queue.add(entry(10), 10)
        evicted.append(evict(queue))
    assert popular in evicted
    assert popular not in evicted[:19]


def test_locked_checkpoints_stay_until_they_are_released() -> None:
    queue = EvictionQueue("host", 1000)
    locked, free = entry(2), entry(100)
    for checkpoint in (locked, free):
        queue.add(checkpoint, 10)
    locked.locks = 1
    assert evict(queue) is free
    assert queue.weakest() is None
    locked.locks = 0
    queue.touch(locked)
    assert evict(queue) is locked


def test_many_touches_take_no_memory() -> None:
    queue = EvictionQueue("host", 1000)
    kept = entry(1)
    queue.add(kept, 10)
    tracemalloc.start()
    for _ in range(5000):
        queue.touch(kept)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5000 * 16  # less than an entry a touch
    assert evict(queue) is kept
