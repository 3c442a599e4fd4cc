"""Waypoints take room that nothing else needs, and up to a share of it the room of the least valuable states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine_states.cache.browse import TreeQuery, list_positions
from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.checkpoint import Checkpoint, CheckpointKind, MissReason
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from rnn_engine_states.cache.eviction import LEAST_WAYPOINTS, WAYPOINT_SHARE, EvictionQueue
from rnn_engine_states.cache.tiers.tier import Tier
from tests.support.cache_books import check_books
from tests.support.toy_states import ROOT, ToyDevice, look_up, same, toy_shape, toy_state

SHAPE = toy_shape()
STATE = SHAPE.state_bytes
WAYPOINT, END = CheckpointKind.WAYPOINT, CheckpointKind.PROMPT_END
LONG = list(range(100, 200))


class Kept:
    """A cache with room for `device` states on the device and `host` states on the host."""

    def __init__(self, host: int, device: int = 0, disk: Path | None = None, index: int | None = None) -> None:
        self.device = ToyDevice(SHAPE, num_slabs=device)
        config = CacheConfig(
            host_capacity=host * STATE,
            disk=None if disk is None else DiskConfig(disk, background_bytes=0, write_after=0.0),
            index_capacity=index,
        )
        self.cache: StateCache = make_cache(SHAPE, "model", self.device, config, self.device if device else None)

    def keep(self, tokens: Sequence[int], kind: CheckpointKind = END) -> bool:
        self.device.start(tokens)
        return self.cache.insert(ROOT, tokens, 0, kind=kind)

    def run_long(self) -> None:
        """Keep the waypoints and the end of a long prompt."""
        for length in (49, 54, 60, 66, 73, 81, 90):
            self.keep(LONG[:length], WAYPOINT)
        self.keep(LONG)

    def lengths(self, kind: CheckpointKind) -> list[int]:
        """Return the lengths of a kind's checkpoints that still have a state."""
        return sorted(one.length for one in self.cache.checkpoints() if one.kind is kind and one.resumable)

    def use(self, tokens: Sequence[int]) -> int:
        """Go on from the state found, which must be right; return its length in tokens."""
        match = look_up(self.cache, tokens)
        if match.checkpoint is not None:
            self.cache.restore(match, 1)
            assert same(self.device.read_state(1), toy_state(SHAPE, tokens[: match.saved]))
        return match.saved


@pytest.mark.parametrize("tiers", [(4, 0), (2, 2), (0, 4)])
def test_waypoints_give_way_before_all_others(tiers: tuple[int, int]) -> None:
    kept = Kept(*tiers)
    kept.keep(LONG[:2])  # saves least of all
    for length in (50, 60, 70):
        assert kept.keep(LONG[:length], WAYPOINT)
    assert kept.lengths(WAYPOINT) == [50, 60, 70]
    for number in range(3):
        assert kept.keep([7 + number, 1])
        assert len(kept.lengths(WAYPOINT)) == 2 - number
    assert kept.lengths(END) == [2, 2, 2, 2]


@pytest.mark.parametrize("tiers", [(32, 0), (0, 32), (32, 32)])
def test_a_long_prompt_is_not_paid_for_twice_where_memory_is_full_of_what_is_worth_more(tiers: tuple[int, int]) -> None:
    kept = Kept(*tiers)
    for first in range(sum(tiers)):
        kept.keep([first] * 500)
        kept.use([first] * 501)
    assert all(one.free < STATE for one in (tier.queue for tier in kept.cache.tiers))
    kept.run_long()
    assert kept.use([*LONG[:95], 1]) >= 0.9 * 95


def test_a_long_prompt_is_not_paid_for_twice_where_the_index_is_full() -> None:
    kept = Kept(host=32, index=120_000)
    for first in range(100):
        kept.keep([first + 200] * 200)
    assert kept.cache.stats().ghosts > 0
    kept.run_long()
    assert kept.use([*LONG[:95], 1]) >= 0.9 * 95


@pytest.mark.parametrize("tiers", [(2, 0), (0, 2), (1, 1)])
def test_a_waypoint_takes_no_others_place(tiers: tuple[int, int]) -> None:
    kept = Kept(*tiers)
    for first in (1, 2):
        kept.keep([first])
    assert not kept.keep(LONG, WAYPOINT)
    assert kept.lengths(END) == [1, 1]
    stats = kept.cache.stats()
    assert (stats.checkpoints, stats.ghosts, stats.not_stored) == (2, 0, 0)


def test_a_waypoint_makes_room_for_a_worthier_one_alone() -> None:
    kept = Kept(host=3)
    kept.keep(LONG[:2])
    for length in (50, 52, 90):
        kept.keep(LONG[:length], WAYPOINT)
    assert kept.lengths(WAYPOINT) == [50, 90]
    assert kept.lengths(END) == [2]


def test_a_waypoint_that_is_used_lasts_like_others() -> None:
    kept = Kept(host=2)
    kept.keep(LONG[:50], WAYPOINT)
    kept.keep(LONG[:60], WAYPOINT)
    assert kept.use(LONG[:55]) == 50
    assert kept.lengths(CheckpointKind.BRANCH) == [50]
    kept.keep([1, 2])
    assert (kept.lengths(CheckpointKind.BRANCH), kept.lengths(WAYPOINT)) == ([50], [])
    kept.keep([2, 2])
    assert kept.use(LONG[:55]) == 50


def test_a_waypoint_that_another_prompt_ends_at_lasts_like_others() -> None:
    kept = Kept(host=3)
    kept.keep(LONG[:50], WAYPOINT)
    kept.keep(LONG[:50])
    assert (kept.lengths(END), kept.lengths(WAYPOINT)) == ([50], [])
    kept.keep(LONG[:50], WAYPOINT)
    assert kept.lengths(END) == [50]


def test_a_waypoint_that_gives_way_is_forgotten_and_what_is_known_of_the_path_stays() -> None:
    kept = Kept(host=2)
    kept.keep(LONG[:50], WAYPOINT)
    kept.keep(LONG)
    kept.keep([1, 2])
    stats = kept.cache.stats()
    assert (stats.checkpoints, stats.ghosts) == (2, 0)
    match = look_up(kept.cache, [*LONG[:60], 1])
    assert (match.saved, match.known, match.miss) == (0, 60, MissReason.NO_CHECKPOINT)


def test_what_an_end_saves_does_not_depend_on_the_waypoints_before_it() -> None:
    kept = Kept(host=9)
    kept.keep(LONG[:20])
    kept.keep(LONG[:60], WAYPOINT)
    kept.keep(LONG[:90], WAYPOINT)
    kept.keep(LONG)
    assert {one.length: one.saves for one in kept.cache.checkpoints()} == {20: 20, 60: 40, 90: 30, 100: 80}


def test_waypoints_are_not_written_to_disk_unless_they_were_used(tmp_path: Path) -> None:
    kept = Kept(host=4, disk=tmp_path)
    kept.keep(LONG[:50], WAYPOINT)
    kept.keep(LONG[:60], WAYPOINT)
    kept.keep(LONG)
    assert kept.use(LONG[:55]) == 50
    for _ in range(3):
        kept.cache.write_behind()
    kept.cache.close()
    again = Kept(host=4, disk=tmp_path)
    assert sorted(one.length for one in again.cache.checkpoints()) == [50, 100]
    assert kept.cache.stats().tiers[-1].copies == 2
    again.cache.close()


def test_waypoints_that_memory_has_no_room_for_are_not_written_to_disk(tmp_path: Path) -> None:
    kept = Kept(host=0, disk=tmp_path)
    assert not kept.keep(LONG[:50], WAYPOINT)
    kept = Kept(host=1, disk=tmp_path / "another")
    kept.keep(LONG[:50], WAYPOINT)
    kept.keep([1, 2])
    assert sum(1 for path in tmp_path.rglob("*.state")) == 0
    kept.cache.close()


def test_a_waypoint_on_the_device_goes_to_the_host_while_there_is_room() -> None:
    kept = Kept(host=2, device=1)
    kept.keep(LONG[:50], WAYPOINT)
    kept.keep(LONG)
    assert {one.length: set(one.sizes) for one in kept.cache.checkpoints()} == {50: {"host"}, 100: {"device"}}
    assert kept.use(LONG[:60]) == 50


def test_waypoints_are_not_told_as_positions() -> None:
    kept = Kept(host=4)
    kept.keep(LONG[:50], WAYPOINT)
    kept.keep(LONG)
    listing = list_positions(kept.cache.checkpoints(), kept.cache.now(), TreeQuery())
    assert [checkpoint.length for checkpoint, _ in listing.places] == [100]
    assert listing.num_known == 1


def test_evictions_of_waypoints_do_not_age_others() -> None:
    queue = EvictionQueue("host", 1000)
    old = Checkpoint("none", END, saves=10)
    queue.add(old, 10)
    for _ in range(50):
        queue.add(Checkpoint("none", WAYPOINT, saves=1000), 10)
        weakest = queue.weakest()
        assert weakest is not None
        assert weakest.is_waypoint
        queue.remove(weakest)
    better = Checkpoint("none", END, saves=9)
    queue.add(better, 10)
    assert queue.weakest(waypoints=True) is None
    assert queue.weakest() is better


def prompts(draw: st.DrawFn) -> list[list[int]]:
    parts = st.lists(st.sampled_from("abcde"), min_size=1, max_size=4)
    return [[1000 * ord(part) + n for part in one for n in range(30)] for one in draw(st.lists(parts, min_size=4))]


@st.composite
def traces(draw: st.DrawFn) -> list[tuple[list[int], list[int]]]:
    """Draw prompts, each with the positions of its waypoints: never at a prompt's end or at a possible branch."""
    found = prompts(draw)
    places = [st.lists(st.integers(1, len(one) - 1).filter(lambda place: place % 30), max_size=4) for one in found]
    return [(one, sorted(set(draw(where)))) for one, where in zip(found, places, strict=True)]


def ends(kept: Kept) -> Iterator[tuple[bytes, tuple[str, ...]]]:
    for one in kept.cache.checkpoints():
        if not one.is_waypoint:
            yield one.known_place().tokens(), tuple(sorted(one.sizes))


def squeeze(plain: Kept, kept: Kept) -> None:
    """Evict the weakest states of `plain` until each tier has no more bytes than `kept` has besides waypoints."""
    for tier, other in zip(plain.cache.tiers, kept.cache.tiers, strict=True):
        while tier.queue.used > besides(other):
            weakest = tier.queue.weakest()
            assert weakest is not None
            plain.cache._tiers.evict_copy(tier, weakest)
    plain.cache._index.trim()


def besides(tier: Tier) -> int:
    """Return the bytes of a tier's states that are not waypoints."""
    return sum(one.sizes[tier.name] for one in tier.queue if not one.is_waypoint)


@settings(max_examples=80, deadline=None)
@given(
    trace=traces(),
    tiers=st.sampled_from([(1, 0), (3, 0), (20, 0), (2, 1), (2, 3), (20, 2), (0, 2), (0, 17), (9, 40), (33, 16)]),
    index=st.sampled_from([None, 12_000, 20_000]),
    full=st.booleans(),
)
def test_waypoints_take_no_more_than_their_share_from_the_weakest_of_all_else(
    trace: list[tuple[list[int], list[int]]], tiers: tuple[int, int], index: int | None, full: bool
) -> None:
    kept, plain = Kept(*tiers, index=index), Kept(*tiers, index=index)
    for first in range(sum(tiers) if full else 0):
        for one in (kept, plain):
            one.keep([first] * (1 + 7 * first % 30))
    for prompt, places in trace:
        for place in [*places, None]:
            if place is not None:
                kept.keep(prompt[:place], WAYPOINT)
            else:
                for one in (kept, plain):
                    one.keep(prompt)
            for tier, other in zip(kept.cache.tiers, plain.cache.tiers, strict=True):
                share = int(tier.queue.capacity * WAYPOINT_SHARE / STATE)
                least = tier.queue.capacity - STATE * (share if share >= LEAST_WAYPOINTS else 0)
                assert besides(tier) >= min(other.queue.used, least)
            squeeze(plain, kept)
            assert sorted(ends(kept)) == sorted(ends(plain))
        stats = kept.cache.stats()
        check_books(kept.cache.checkpoints(), stats)
        assert stats.index_bytes <= stats.index_capacity
        assert len(kept.device.slabs) <= tiers[1]
        assert stats.not_stored == plain.cache.stats().not_stored


def test_waypoints_give_way_before_what_is_known_of_paths() -> None:
    kept = Kept(host=2, index=12_000)
    for first in range(20):
        kept.keep([first] * 200)
    ghosts = kept.cache.stats().ghosts
    assert ghosts > 0
    kept.cache.drop_position(str(next(one.id for one in kept.cache.checkpoints() if one.resumable)))
    assert not kept.keep([20] * 500, WAYPOINT)  # longer than what was dropped
    assert kept.cache.stats().ghosts == ghosts
