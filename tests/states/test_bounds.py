"""The cache's memory stays within its bounds, including the tokens of prompts and their records."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.checkpoint import CheckpointKind
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from tests.support.cache_model import CacheModel, run_random
from tests.support.toy_states import ROOT, ToyDevice, keep, look_up, toy_shape

SHAPE = toy_shape()
SLACK = 250_000  # bytes for the cache itself, containers that grow by doubling, and errors of the estimate


def prompts(count: int, length: int) -> list[list[int]]:
    """Return prompts that share nothing."""
    numbers = np.random.default_rng(1).integers(1 << 16, 1 << 31, (count, length))
    return [[int(number) for number in row] for row in numbers]


def memory_of(make: Callable[[], StateCache]) -> tuple[int, StateCache]:
    tracemalloc.start()
    try:
        cache = make()
        return tracemalloc.get_traced_memory()[0], cache
    finally:
        tracemalloc.stop()


def filled(config: CacheConfig, tokens: Sequence[Sequence[int]], slabs: int = 0) -> StateCache:
    device = ToyDevice(SHAPE, num_slabs=slabs)
    cache = make_cache(SHAPE, "model", device, config, device if slabs else None)
    logits = np.zeros(SHAPE.vocab_size, np.float32)
    for prompt in tokens:
        cache.insert(ROOT, prompt, 0, kind=CheckpointKind.PROMPT_END, logits=logits)
    return cache


@pytest.mark.parametrize(
    ("count", "length", "host_capacity", "slabs"),
    [
        pytest.param(3000, 10, 100_000, 0, id="short prompts"),
        pytest.param(3000, 10, 0, 1, id="short prompts whose states are gone"),
        pytest.param(3000, 10, 1 << 30, 0, id="short prompts whose states all have room"),
        pytest.param(40, 20_000, 1 << 30, 0, id="long prompts"),
        pytest.param(300, 600, 0, 1, id="prompts of more than a block whose states are gone"),
    ],
)
def test_memory_stays_within_the_bounds(count: int, length: int, host_capacity: int, slabs: int) -> None:
    asked = prompts(count, length)
    config = CacheConfig(host_capacity=host_capacity, index_capacity=300_000)
    used, cache = memory_of(lambda: filled(config, asked, slabs))
    stats = cache.stats()
    assert stats.index_bytes <= stats.index_capacity == 300_000
    assert used <= sum(tier.used for tier in stats.tiers) + stats.index_bytes + SLACK
    assert stats.checkpoints + stats.ghosts < count  # else the bound is not tried


def test_ghost_entries_go_before_checkpoints() -> None:
    cache = filled(CacheConfig(host_capacity=480, index_capacity=40_000), prompts(100, 10))
    stats = cache.stats()
    assert stats.checkpoints == 1
    assert 40 < stats.ghosts < 70
    assert cache.look_up(ROOT, prompts(100, 10)[0]).known == 0
    assert cache.look_up(ROOT, prompts(100, 10)[98]).known == 10


def test_a_prompt_that_is_longer_than_the_index_may_be_is_not_kept() -> None:
    config = CacheConfig(index_capacity=20_000)
    cache = filled(config, [[1, 2, 3], list(range(10, 6000))])
    assert cache.stats().not_stored == 1
    assert look_up(cache, [1, 2, 3]).saved == 3
    assert cache.look_up(ROOT, list(range(10, 6000))).known == 0


def test_logits_of_states_on_the_device_are_bounded() -> None:
    shape = toy_shape(vocab=1000)
    device = ToyDevice(shape, num_slabs=50)
    cache = make_cache(shape, "model", device, CacheConfig(index_capacity=120_000), device)
    for number in range(30):
        keep(cache, device, [number])
    stats = cache.stats()
    assert stats.device_logits_bytes == 60_000
    assert [tier.copies for tier in stats.tiers] == [15, 15]
    assert stats.index_bytes <= 120_000


def test_files_of_earlier_runs_are_taken_in_within_the_bound(tmp_path: Path) -> None:
    disk = DiskConfig(tmp_path, background_bytes=0)
    filled(CacheConfig(host_capacity=0, disk=disk), prompts(60, 10)).close()
    cache = filled(CacheConfig(host_capacity=0, disk=disk, index_capacity=40_000), [])
    stats = cache.stats()
    assert stats.index_bytes <= 40_000
    assert 10 < stats.checkpoints < 40
    assert len(list(tmp_path.iterdir())) == stats.checkpoints


def test_random_operations_with_little_room_for_the_index(tmp_path: Path) -> None:
    model = CacheModel(tmp_path, disk_bytes=0, index_capacity=60_000)
    run_random(model, seed=5, operations=1500, check_every=20)
    model.end()


def test_paths_of_states_that_had_no_room_stay_in_the_bound() -> None:
    device = ToyDevice(SHAPE)
    cache = make_cache(SHAPE, "model", device, CacheConfig(host_capacity=0, index_capacity=20_000))
    for first in range(200):
        assert not cache.insert(ROOT, [first] * 30, 0, kind=CheckpointKind.PROMPT_END)
        stats = cache.stats()
        assert stats.index_bytes <= stats.index_capacity
    assert stats.ghosts > 0
