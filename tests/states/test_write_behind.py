"""States are written to disk some seconds after they were kept, so a crash loses no more than those seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from rnn_engine_states.cache.tiers.tier import SlotPool
from tests.support.faulty_disk import Fault, FaultyDisk
from tests.support.named_states import Clock
from tests.support.toy_states import ToyDevice, keep, look_up, same, toy_shape, toy_state

SHAPE = toy_shape()
PROMPT = list(range(1, 21))
OTHER = list(range(50, 60))


def make(
    folder: Path, clock: Clock, device: ToyDevice, pool: SlotPool | None = None, *, capacity: int = 1 << 20
) -> StateCache:
    disk = DiskConfig(folder, capacity, background_bytes=0, write_after=5.0)
    return make_cache(SHAPE, "model", device, CacheConfig(disk=disk), pool, clock=clock)


def after_a_crash(folder: Path, tokens: list[int]) -> int:
    """Return how many of the tokens the next process finds if this one is killed now."""
    device = ToyDevice(SHAPE)
    cache = make(folder, Clock(), device)
    match = look_up(cache, tokens)
    if match.saved > 0:
        cache.restore(match, 0)
        assert same(device.read_state(0), toy_state(SHAPE, tokens[: match.saved]))
    return match.saved


def test_a_state_in_memory_is_written_when_it_is_old_enough(tmp_path: Path) -> None:
    clock, device = Clock(), ToyDevice(SHAPE)
    cache = make(tmp_path, clock, device)
    assert not cache.has_unwritten
    keep(cache, device, PROMPT)
    clock.now = 4.0
    keep(cache, device, OTHER)
    cache.write_behind()
    assert (after_a_crash(tmp_path, PROMPT), cache.has_unwritten) == (0, True)
    clock.now = 5.0
    cache.write_behind()
    cache.write_behind()
    assert (after_a_crash(tmp_path, PROMPT), after_a_crash(tmp_path, OTHER)) == (20, 0)
    assert look_up(cache, PROMPT).tier == "host"  # where it still is
    clock.now = 9.0
    cache.write_behind()
    cache.write_behind()
    assert (after_a_crash(tmp_path, OTHER), cache.has_unwritten) == (10, False)


def test_a_state_on_the_device_is_read_without_anybody_waiting(tmp_path: Path) -> None:
    clock, device = Clock(), ToyDevice(SHAPE, num_slabs=2, slow_reads=True)
    cache = make(tmp_path, clock, device, device)
    keep(cache, device, PROMPT)
    clock.now = 5.0
    cache.write_behind()
    cache.write_behind()
    match = look_up(cache, PROMPT)
    cache.restore(match, 1)
    assert (match.tier, device.num_waits, after_a_crash(tmp_path, PROMPT)) == ("device", 0, 0)
    device.arrive()
    cache.write_behind()
    assert (device.num_waits, after_a_crash(tmp_path, PROMPT), cache.has_unwritten) == (0, 20, False)


def test_a_state_that_went_while_it_was_read_is_not_written(tmp_path: Path) -> None:
    clock, device = Clock(), ToyDevice(SHAPE, num_slabs=2, slow_reads=True)
    cache = make(tmp_path, clock, device, device)
    keep(cache, device, PROMPT)
    clock.now = 5.0
    cache.write_behind()
    cache.drop_all()
    keep(cache, device, PROMPT, logits=False)
    device.arrive()
    cache.write_behind()  # the state that was read had logits, and the one kept now has none
    assert list(tmp_path.iterdir()) == []
    clock.now = 10.0
    cache.write_behind()
    device.arrive()
    cache.write_behind()
    assert after_a_crash(tmp_path, [*PROMPT, 1]) == 20


def test_what_gave_way_in_memory_meanwhile_is_written_once(tmp_path: Path) -> None:
    clock, device = Clock(), ToyDevice(SHAPE)
    cache = make(tmp_path, clock, device)
    keep(cache, device, PROMPT)
    clock.now = 5.0
    cache.write_behind()
    cache.close()
    assert after_a_crash(tmp_path, PROMPT) == 20
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_tier_keeps_what_is_worth_most_and_is_not_written_again_and_again(tmp_path: Path) -> None:
    one = ToyDevice(SHAPE)
    alone = make(tmp_path / "one", Clock(), one)
    keep(alone, one, PROMPT)
    alone.close()
    size = sum(path.stat().st_size for path in (tmp_path / "one").iterdir())
    clock, device = Clock(), ToyDevice(SHAPE)
    folder = tmp_path / "two"
    cache = make(folder, clock, device, capacity=size + 100)
    for tokens in (OTHER, PROMPT):  # the longer saves more
        keep(cache, device, tokens)
    with pytest.MonkeyPatch.context() as patch:
        disk = FaultyDisk(patch)
        for second in range(0, 100, 5):
            clock.now = float(second)
            cache.write_behind()
        operations = disk.operations
    assert (after_a_crash(folder, PROMPT), after_a_crash(folder, OTHER)) == (20, 0)
    assert operations < 20  # two files written and one deleted
    assert not cache.has_unwritten


def test_a_write_that_failed_is_tried_again(tmp_path: Path) -> None:
    clock, device = Clock(), ToyDevice(SHAPE)
    cache = make(tmp_path, clock, device)
    keep(cache, device, PROMPT)
    clock.now = 5.0
    with pytest.MonkeyPatch.context() as patch:
        FaultyDisk(patch, Fault.FULL, 0)
        cache.write_behind()
        cache.write_behind()
        cache.write_behind()
    assert (cache.stats().failed_writes, after_a_crash(tmp_path, PROMPT)) == (1, 0)
    assert look_up(cache, PROMPT).tier == "host"
    clock.now = 10.0
    cache.write_behind()
    cache.write_behind()
    assert after_a_crash(tmp_path, PROMPT) == 20
