"""Reading states from slow tiers before the look-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.checkpoint import Checkpoint, CheckpointKind, MissReason
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from rnn_engine_states.cache.tiers.fetches import Fetch, Fetches
from rnn_engine_states.frozen import Payload
from tests.support.toy_states import ROOT, ToyDevice, keep, look_up, toy_shape

SHAPE = toy_shape()
PROMPT = list(range(1, 21))
PAYLOAD = Payload({}, None)


def nothing() -> None:
    """A listener that does nothing."""


class Reads:
    """Reads that the test ends, of checkpoints that it makes."""

    def __init__(self, max_bytes: int = 100) -> None:
        self.unlocked: list[Checkpoint] = []
        self.fetches = Fetches(max_bytes, self.unlocked.append)
        self.begun: dict[Checkpoint, Future[Payload]] = {}

    def begin(
        self, checkpoint: Checkpoint, size: int = 60, on_done: Callable[[], None] = nothing, owner: str = ""
    ) -> Fetch:
        def start() -> Future[Payload]:
            self.begun[checkpoint] = Future()
            return self.begun[checkpoint]

        return self.fetches.begin(checkpoint, size, start, on_done, owner)


def some_checkpoint() -> Checkpoint:
    return Checkpoint(ROOT, CheckpointKind.PROMPT_END)


def test_fetches_of_one_checkpoint_share_a_read_and_all_hear_of_its_end() -> None:
    reads, checkpoint, heard = Reads(), some_checkpoint(), list[int]()
    fetches = [reads.begin(checkpoint, on_done=lambda number=number: heard.append(number)) for number in range(3)]  # type: ignore[misc]
    assert checkpoint.locks == 3
    assert [fetch.done for fetch in fetches] == [False] * 3
    reads.begun[checkpoint].set_result(PAYLOAD)
    assert heard == [0, 1, 2]
    late = reads.begin(checkpoint, on_done=lambda: heard.append(3))
    assert all(fetch.done and fetch.payload_of(checkpoint) is PAYLOAD for fetch in [*fetches, late])
    assert heard == [0, 1, 2]
    for fetch in [*fetches, late]:
        assert reads.unlocked == []
        fetch.release()
        fetch.release()
    assert (checkpoint.locks, reads.unlocked, reads.fetches.num_bytes) == (0, [checkpoint], 0)


def test_owners_take_turns() -> None:
    reads = Reads(max_bytes=60)
    owners = ["loud"] * 5 + ["quiet", "quiet", "third"]
    fetches = {some_checkpoint(): owner for owner in owners}
    begun = {checkpoint: reads.begin(checkpoint, owner=owner) for checkpoint, owner in fetches.items()}
    order = []
    while begun:
        checkpoint = list(reads.begun)[-1]
        order.append(fetches[checkpoint])
        begun.pop(checkpoint).release()
        if len(order) == 4:  # a queued read that nobody wants any more
            begun.pop(next(one for one, owner in fetches.items() if owner == "quiet" and one in begun)).release()
    assert order == ["loud", "loud", "quiet", "third", "loud", "loud", "loud"]


def test_reads_wait_for_room_and_begin_in_order() -> None:
    reads = Reads(max_bytes=100)
    checkpoints = [some_checkpoint() for _ in range(4)]
    fetches = [reads.begin(checkpoint, size) for checkpoint, size in zip(checkpoints, (60, 40, 30, 500), strict=True)]
    assert list(reads.begun) == checkpoints[:2]
    reads.begun[checkpoints[0]].set_result(PAYLOAD)
    assert list(reads.begun) == checkpoints[:2]  # the states that were read are still held
    fetches[0].release()
    assert list(reads.begun) == checkpoints[:3]
    fetches[1].release()
    fetches[2].release()
    assert list(reads.begun) == checkpoints  # alone, one may be larger than the bound
    assert reads.fetches.num_bytes == 500


def test_one_that_leaves_before_its_read_begins_leaves_nothing() -> None:
    reads, heard = Reads(), list[int]()
    first, second = some_checkpoint(), some_checkpoint()
    fetch = reads.begin(first)
    reads.begin(second, on_done=lambda: heard.append(2)).release()
    fetch.release()
    assert list(reads.begun) == [first]
    assert (heard, second.locks, reads.fetches.num_bytes) == ([], 0, 0)


def test_a_read_that_fails_is_told_once_and_begun_anew_by_the_next() -> None:
    reads, checkpoint = Reads(), some_checkpoint()
    fetch = reads.begin(checkpoint)
    assert reads.fetches.take_failed() == []
    error = OSError("gone")
    reads.begun[checkpoint].set_exception(error)
    assert fetch.failed
    assert reads.fetches.take_failed() == [(checkpoint, error)]
    assert reads.fetches.take_failed() == []
    another = reads.begin(checkpoint)
    assert not another.done
    fetch.release()
    another.release()
    assert (checkpoint.locks, reads.fetches.num_bytes) == (0, 0)


@contextmanager
def states_on_disk(folder: Path, *prompts: list[int]) -> Iterator[StateCache]:
    device = ToyDevice(SHAPE)
    config = CacheConfig(host_capacity=0, disk=DiskConfig(folder, background_bytes=0))
    cache = make_cache(SHAPE, "model", device, config)
    for prompt in prompts:
        keep(cache, device, prompt)
    yield cache
    cache.close()


def test_a_state_in_a_file_is_not_there_until_it_was_fetched(tmp_path: Path) -> None:
    with states_on_disk(tmp_path, PROMPT) as cache:
        miss = cache.look_up(ROOT, PROMPT)
        assert (miss.saved, miss.known, miss.miss) == (0, 20, MissReason.NOT_FETCHED)
        found = look_up(cache, PROMPT)
        assert (found.saved, found.miss) == (20, None)
        cache.release(found)


def test_nothing_is_read_that_is_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with states_on_disk(tmp_path, PROMPT[:5], PROMPT) as cache:
        monkeypatch.setattr("rnn_engine_states.cache.tiers.disk.read_full_state", None)
        assert cache.prefetch("tuned", PROMPT, on_done=nothing) is None
        assert cache.prefetch(ROOT, [99, 98], on_done=nothing) is None
        assert cache.prefetch(ROOT, PROMPT, 4, on_done=nothing) is None


def test_a_fetch_serves_the_checkpoint_that_it_was_for(tmp_path: Path) -> None:
    with states_on_disk(tmp_path, PROMPT[:5], PROMPT) as cache:
        short = look_up(cache, PROMPT, 10)
        assert short.saved == 5
        cache.release(short)
        fetch = cache.prefetch(ROOT, PROMPT, 10, on_done=nothing)
        assert fetch is not None
        assert cache.look_up(ROOT, PROMPT[:8]).miss is MissReason.NOT_FETCHED
        fetch.release()


def test_a_fetched_state_outlives_its_fetch_in_the_match(tmp_path: Path) -> None:
    with states_on_disk(tmp_path, PROMPT) as cache:
        match = look_up(cache, PROMPT)  # its fetch is released
        cache.restore(match, 1)
        assert cache.stats().checkpoints == 1
