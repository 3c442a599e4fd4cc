"""Copies that move between tiers in the background, and a fourth tier behind the three."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rnn_engine.errors import DeviceError, StateError
from rnn_engine.types import F32, PendingState
from rnn_engine_states.cache.cache import Match, StateCache, make_cache
from rnn_engine_states.cache.checkpoint import Checkpoint, CheckpointKind, MissReason
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from rnn_engine_states.cache.eviction import EvictionQueue
from rnn_engine_states.cache.tiers.disk import DiskTier
from rnn_engine_states.cache.tiers.tier import DeviceTier, HostTier, MakeRoom, PendingPayload, Tier, ready
from rnn_engine_states.frozen import Payload
from tests.support.cache_books import check_books
from tests.support.toy_states import ROOT, ToyDevice, keep, look_up, same, toy_shape, toy_state

SHAPE = toy_shape()
STATE = 384  # bytes
ONE = STATE + 96  # with logits
FIRST, SECOND, THIRD, FOURTH = [1, 2], [3, 4], [5, 6], [7, 8]


def make(host_capacity: int = 1 << 20, folder: Path | None = None, slabs: int = 1) -> tuple[StateCache, ToyDevice]:
    """Return a cache on a device whose states arrive late."""
    device = ToyDevice(SHAPE, num_slots=2, num_slabs=slabs, slow_reads=True)
    disk = None if folder is None else DiskConfig(folder, background_bytes=0)
    config = CacheConfig(host_capacity=host_capacity, disk=disk)
    return make_cache(SHAPE, "model", device, config, device if slabs else None), device


def copies(cache: StateCache, tokens: Sequence[int]) -> dict[str, int]:
    """Return the sizes of the copies of a checkpoint, by tier."""
    packed = [one for one in cache.checkpoints() if one.length == len(tokens) and _tokens(one) == list(tokens)]
    return packed[0].sizes


def _tokens(checkpoint: Checkpoint) -> list[int]:
    return memoryview(checkpoint.known_place().tokens()).cast("I").tolist()


def settle(cache: StateCache) -> None:
    cache.peek(ROOT, [99])


def restore(cache: StateCache, device: ToyDevice, match: Match, tokens: Sequence[int]) -> None:
    cache.restore(match, 1)
    assert same(device.read_state(1), toy_state(SHAPE, tokens))


def test_a_full_device_is_read_in_the_background() -> None:
    cache, device = make()
    keep(cache, device, FIRST)
    keep(cache, device, SECOND)
    assert len(device.reads) == 1
    assert (copies(cache, FIRST), copies(cache, SECOND)) == ({"host": ONE}, {"device": STATE})
    assert len(device.slabs) == 1
    settle(cache)
    assert device.num_waits == 0
    device.arrive()
    settle(cache)
    assert copies(cache, FIRST) == {"host": ONE}
    restore(cache, device, look_up(cache, FIRST), FIRST)
    assert device.num_waits == 0


def test_a_state_on_its_way_serves_those_who_wait_for_it() -> None:
    cache, device = make()
    keep(cache, device, FIRST)
    keep(cache, device, SECOND)
    assert len(device.reads) == 1
    match = look_up(cache, FIRST)
    assert (match.saved, match.tier) == (2, "host")
    assert match.logits is not None
    assert device.num_waits == 0
    restore(cache, device, match, FIRST)
    assert device.num_waits == 1
    assert copies(cache, FIRST) == {"device": STATE, "host": ONE}


def test_a_state_on_its_way_can_be_sent_on_to_the_next_tier(tmp_path: Path) -> None:
    cache, device = make(host_capacity=ONE, folder=tmp_path)
    for tokens in (FIRST, SECOND, THIRD):
        keep(cache, device, tokens)
    assert device.num_waits == 0
    assert [list(copies(cache, tokens)) for tokens in (FIRST, SECOND, THIRD)] == [["disk"], ["host"], ["device"]]
    assert list(tmp_path.iterdir()) == []
    restore(cache, device, look_up(cache, FIRST), FIRST)
    device.arrive()
    settle(cache)
    for tokens in (SECOND, THIRD, FIRST):
        restore(cache, device, look_up(cache, tokens), tokens)
    disk = next(tier for tier in cache.stats().tiers if tier.tier == "disk")
    assert disk.used == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_state_on_its_way_gives_way_where_no_tier_is_left() -> None:
    cache, device = make(host_capacity=ONE)
    for tokens in (FIRST, SECOND, THIRD):
        keep(cache, device, tokens)
    assert copies(cache, FIRST) == {}
    assert look_up(cache, FIRST).miss is MissReason.EVICTED
    device.arrive()
    settle(cache)
    assert copies(cache, SECOND) == {"host": ONE}


def test_without_a_device_tier_new_states_are_read_in_the_background() -> None:
    cache, device = make(slabs=0)
    keep(cache, device, FIRST)
    assert len(device.reads) == 1
    device.run([9])  # the slot goes on
    device.arrive()
    restore(cache, device, look_up(cache, FIRST), FIRST)
    assert device.num_waits == 0


def test_what_is_on_its_way_is_written_at_the_end(tmp_path: Path) -> None:
    cache, device = make(folder=tmp_path)
    keep(cache, device, FIRST)
    keep(cache, device, SECOND)
    cache.close()
    again, device = make(folder=tmp_path)
    for tokens in (FIRST, SECOND):
        restore(again, device, look_up(again, tokens), tokens)


def test_a_read_that_fails_loses_its_copy_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    class FailingRead:
        def done(self) -> bool:
            return True

        def result(self) -> dict[str, F32]:
            raise DeviceError("lost")

    class Failing(ToyDevice):
        def start_read(self, source: int) -> PendingState:
            return FailingRead()

    device = Failing(SHAPE, num_slabs=1)
    cache = make_cache(SHAPE, "model", device, CacheConfig(), device)
    with caplog.at_level(logging.ERROR):
        assert keep(cache, device, FIRST)
        assert keep(cache, device, SECOND)
    assert "can't be read" in caplog.text
    assert look_up(cache, FIRST).miss is MissReason.EVICTED
    restore(cache, device, look_up(cache, SECOND), SECOND)
    assert {tier.tier: tier.used for tier in cache.stats().tiers} == {"device": STATE, "host": 0}


def test_a_state_that_f16_can_not_hold_is_larger_when_it_arrives() -> None:
    device = ToyDevice(SHAPE, slow_reads=True)
    config = CacheConfig(host_capacity=STATE, host_precision="f16")
    cache = make_cache(SHAPE, "model", device, config)
    keep(cache, device, FIRST, logits=False)
    state = toy_state(SHAPE, SECOND)
    state["wkv"][0, 0, 0, 0] = 1e6
    device.write_state(0, state)
    cache.insert(ROOT, SECOND, 0, kind=CheckpointKind.MARK)
    assert (copies(cache, FIRST), copies(cache, SECOND)) == ({"host": STATE // 2}, {"host": STATE // 2})
    device.arrive()
    settle(cache)
    wkv = state["wkv"].nbytes
    assert (copies(cache, FIRST), copies(cache, SECOND)) == ({}, {"host": wkv + (STATE - wkv) // 2})


@dataclass
class Shelves:
    """A store that several processes share. The test ends its reads and writes."""

    kept: dict[bytes, Payload] = field(default_factory=dict)
    writes: list[tuple[bytes, Payload]] = field(default_factory=list)
    reads: list[tuple[bytes, Future[Payload]]] = field(default_factory=list)

    def work(self) -> None:
        for tokens, payload in self.writes:
            self.kept[tokens] = payload
        self.writes.clear()
        for tokens, future in self.reads:
            if not future.set_running_or_notify_cancel():
                continue
            if tokens in self.kept:
                future.set_result(self.kept[tokens])
            else:
                future.set_exception(StateError("gone"))
        self.reads.clear()


class SharedTier(Tier):
    """A minimal fourth tier."""

    name = "shared"
    slow = True

    def __init__(self, shelves: Shelves, capacity: int) -> None:
        self.queue = EvictionQueue(self.name, capacity)
        self._shelves = shelves

    def copy_bytes(self, checkpoint: Checkpoint) -> int:
        return STATE + (ONE - STATE if checkpoint.has_logits else 0)

    def put(self, checkpoint: Checkpoint, payload: Payload, make_room: MakeRoom, *, wait: bool = False) -> bool:
        if not make_room(payload.num_bytes):
            return False
        self.queue.add(checkpoint, payload.num_bytes)
        self._shelves.writes.append((checkpoint.known_place().tokens(), payload))
        if wait:
            self._shelves.work()
        return True

    def get(self, checkpoint: Checkpoint) -> Payload | None:
        return dict(self._shelves.writes).get(checkpoint.known_place().tokens())

    def start_read(self, checkpoint: Checkpoint) -> PendingPayload:
        waiting = self.get(checkpoint)
        return self.start_fetch(checkpoint) if waiting is None else ready(waiting)

    def start_fetch(self, checkpoint: Checkpoint) -> Future[Payload]:
        future: Future[Payload] = Future()
        self._shelves.reads.append((checkpoint.known_place().tokens(), future))
        return future

    def drop(self, checkpoint: Checkpoint) -> None:
        tokens = checkpoint.known_place().tokens()
        self.queue.remove(checkpoint)
        self._shelves.kept.pop(tokens, None)
        self._shelves.writes[:] = [write for write in self._shelves.writes if write[0] != tokens]

    def close(self) -> None:
        self._shelves.work()


class FourTiers:
    """A cache with room for one state in each tier except the last, which has room for `shared`."""

    def __init__(self, folder: Path, shared: int = 2) -> None:
        self.device = ToyDevice(SHAPE, num_slots=2, num_slabs=1)
        self.shelves = Shelves()
        file_bytes = one_file_bytes(folder / "sample")
        writer, self.reader = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        tiers = (
            DeviceTier(self.device, 1 << 20),
            HostTier(SHAPE, ONE, "f32"),
            DiskTier(DiskConfig(folder / "disk", file_bytes, background_bytes=0), "model", SHAPE, writer, self.reader),
            SharedTier(self.shelves, shared * ONE),
        )
        self.cache = StateCache(self.device, tiers, CacheConfig())

    def keep(self, tokens: list[int]) -> None:
        """Keep a state, and let states on their way from file to shared store arrive."""
        keep(self.cache, self.device, tokens)
        self.wait_for_files()
        settle(self.cache)

    def wait_for_files(self) -> None:
        """Return when all reads of files have ended."""
        self.reader.submit(lambda: None).result()


def one_file_bytes(folder: Path) -> int:
    cache, device = make(host_capacity=0, folder=folder, slabs=0)
    keep(cache, device, FIRST)
    device.arrive()
    settle(cache)
    cache.close()
    [path] = folder.iterdir()
    return path.stat().st_size


def where(cache: StateCache) -> list[list[str]]:
    return [list(copies(cache, tokens)) for tokens in (FIRST, SECOND, THIRD, FOURTH)]


def test_a_fourth_tier_takes_what_the_third_gives_up(tmp_path: Path) -> None:
    tiers = FourTiers(tmp_path)
    for tokens in (FIRST, SECOND, THIRD, FOURTH):
        tiers.keep(tokens)
    assert where(tiers.cache) == [["shared"], ["disk"], ["host"], ["device"]]
    tiers.shelves.work()
    assert len(tiers.shelves.kept) == 1
    assert [tier.demotions for tier in tiers.cache.stats().tiers] == [0, 3, 2, 1]


def test_a_fourth_tier_is_fetched_from_and_promoted(tmp_path: Path) -> None:
    tiers = FourTiers(tmp_path)
    for tokens in (FIRST, SECOND, THIRD, FOURTH):
        tiers.keep(tokens)
    tiers.shelves.work()
    woken: list[bool] = []
    fetch = tiers.cache.prefetch(ROOT, FIRST, on_done=lambda: woken.append(True))
    assert fetch is not None
    assert tiers.cache.look_up(ROOT, FIRST, fetch=fetch).miss is MissReason.NOT_FETCHED
    tiers.shelves.work()
    assert (fetch.done, fetch.failed, woken) == (True, False, [True])
    match = tiers.cache.look_up(ROOT, FIRST, fetch=fetch)
    fetch.release()
    assert match.tier == "shared"
    restore(tiers.cache, tiers.device, match, FIRST)
    assert copies(tiers.cache, FIRST) == {"device": STATE, "shared": ONE}


def test_a_full_fourth_tier_gives_up_what_is_worth_least(tmp_path: Path) -> None:
    tiers = FourTiers(tmp_path, shared=1)
    for tokens in (FIRST, SECOND, THIRD, FOURTH, [9, 10]):
        tiers.keep(tokens)
        tiers.shelves.work()
    assert where(tiers.cache) == [[], ["shared"], ["disk"], ["host"]]
    assert look_up(tiers.cache, FIRST).miss is MissReason.EVICTED
    assert len(tiers.shelves.kept) == 1


def test_a_copy_that_is_lost_in_the_fourth_tier_is_a_miss(tmp_path: Path) -> None:
    tiers = FourTiers(tmp_path)
    for tokens in (FIRST, SECOND, THIRD, FOURTH):
        tiers.keep(tokens)
    tiers.shelves.work()
    tiers.shelves.kept.clear()
    fetch = tiers.cache.prefetch(ROOT, FIRST, on_done=lambda: None)
    assert fetch is not None
    tiers.shelves.work()
    assert fetch.failed
    fetch.release()
    assert tiers.cache.look_up(ROOT, FIRST).miss is MissReason.DAMAGED


def test_a_state_between_two_slow_tiers_is_not_there_for_the_moment(tmp_path: Path) -> None:
    tiers = FourTiers(tmp_path)
    for tokens in (FIRST, SECOND, THIRD):
        tiers.keep(tokens)
    let_go = threading.Event()
    tiers.reader.submit(let_go.wait)
    keep(tiers.cache, tiers.device, FOURTH)
    assert copies(tiers.cache, FIRST) == {"shared": ONE}
    assert tiers.cache.prefetch(ROOT, FIRST, on_done=lambda: None) is None
    assert tiers.cache.look_up(ROOT, FIRST).miss is MissReason.NOT_FETCHED
    let_go.set()
    tiers.wait_for_files()
    match = tiers.cache.look_up(ROOT, FIRST)
    assert match.tier == "shared"
    restore(tiers.cache, tiers.device, match, FIRST)


def test_a_lost_device_takes_its_copies_along_and_leaves_the_others() -> None:
    cache, device = make(slabs=2)
    keep(cache, device, FIRST)
    keep(cache, device, SECOND)
    keep(cache, device, THIRD)
    device.arrive()
    restore(cache, device, look_up(cache, FIRST), FIRST)  # on host, and on the device again
    keep(cache, device, FOURTH)  # FIRST or another is on its way to the host
    on_host = [one for one in (FIRST, SECOND, THIRD, FOURTH) if "host" in copies(cache, one)]
    moving = len(device.reads)
    assert moving > 0
    cache.lose_device()
    other = ToyDevice(SHAPE, num_slots=2, num_slabs=1, slow_reads=True)
    cache.use_device(other, other)
    assert device.num_waits == 0
    hits = [tokens for tokens in (FIRST, SECOND, THIRD, FOURTH) if look_up_and_release(cache, tokens)]
    assert FIRST in hits
    assert len(hits) == len(on_host) - moving
    restore(cache, other, look_up(cache, FIRST), FIRST)
    keep(cache, other, FOURTH)
    restore(cache, other, look_up(cache, FOURTH), FOURTH)
    [on_device, _] = cache.stats().tiers
    assert (on_device.capacity, on_device.copies) == (STATE, 1)
    check_books(cache.checkpoints(), cache.stats())


def look_up_and_release(cache: StateCache, tokens: Sequence[int]) -> bool:
    match = look_up(cache, tokens)
    cache.release(match)
    return match.saved > 0


def test_states_that_can_not_be_read_at_the_end_do_not_take_others_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_handle: int) -> PendingState:
        raise DeviceError("lost")

    cache, device = make(folder=tmp_path)
    keep(cache, device, FIRST)
    keep(cache, device, SECOND)
    device.arrive()
    settle(cache)
    assert (list(copies(cache, FIRST)), list(copies(cache, SECOND))) == (["host"], ["device"])
    monkeypatch.setattr(device, "start_read", broken)
    cache.close()
    again, device = make(folder=tmp_path)
    restore(again, device, look_up(again, FIRST), FIRST)
    assert look_up(again, SECOND).saved == 0
    again.close()
