"""The tokens that followed a text before, by the cache's paths: of the branch used last, and of the same root only."""

from __future__ import annotations

import pytest

from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.checkpoint import make_root
from rnn_engine_states.cache.config import CacheConfig
from tests.support.toy_states import ROOT, ToyDevice, keep, look_up, toy_shape


class Kept:
    """A cache with a clock by which every text is kept, or looked up, at another moment."""

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.now = 0.0
        self.device = ToyDevice(toy_shape())
        self.cache: StateCache = make_cache(
            self.device.shape, "model", self.device, CacheConfig(host_capacity=capacity), clock=lambda: self.now
        )

    def keep(self, *tokens: int, root: str = ROOT) -> None:
        self.now += 1.0
        keep(self.cache, self.device, tokens, root=root)

    def look_up(self, *tokens: int) -> None:
        self.now += 1.0
        self.cache.release(look_up(self.cache, tokens))

    def after(self, *tokens: int, count: int = 100, root: str = ROOT) -> list[int]:
        return self.cache.continuation(root, tokens, count)


def test_it_is_what_follows_on_the_path_that_was_used_last() -> None:
    kept = Kept()
    kept.keep(1, 2, 3, 4, 5)
    kept.keep(1, 2, 6, 7)
    assert kept.after(1, 2) == [6, 7]
    assert kept.after(1, 2, 3) == [4, 5]
    kept.look_up(1, 2, 3, 4, 5)
    assert kept.after(1, 2) == [3, 4, 5]
    assert kept.after(1, 2, count=2) == [3, 4]


def test_a_longer_path_that_was_used_last_tells_all_of_it() -> None:
    kept = Kept()
    kept.keep(1, 2, 3)
    kept.keep(*range(1, 2000))
    assert kept.after(1) == list(range(2, 102))
    assert kept.after(*range(1, 1500)) == list(range(1500, 1600))


def test_nothing_follows_the_end_of_a_path_nor_a_text_that_leaves_it() -> None:
    kept = Kept()
    assert kept.after(1) == []
    kept.keep(1, 2, 3)
    assert kept.after(1, 2, 3) == []
    assert kept.after(1, 3) == []
    assert kept.after(1, 2, 3, 4) == []


@pytest.mark.parametrize("other", [make_root(ROOT, "ann"), make_root("a state", ""), make_root("a state", "ben/1")])
def test_what_was_kept_under_another_root_is_not_told(other: str) -> None:
    kept = Kept()
    kept.keep(1, 2, 3, root=make_root(ROOT, "ben/1"))
    assert kept.after(1, root=make_root(ROOT, "ben/1")) == [2, 3]
    for root in (other, ROOT, make_root(ROOT, "ben"), make_root(ROOT, "ben/12")):
        assert kept.after(1, root=root) == []


def test_a_path_whose_state_is_gone_is_told_until_it_is_forgotten() -> None:
    kept = Kept(capacity=500)  # of one state
    kept.keep(1, 2, 3)
    kept.keep(4, 5, 6)
    assert [one.resumable for one in kept.cache.checkpoints()].count(True) == 1
    assert kept.after(1) == [2, 3]
    kept.cache.drop_all()
    assert kept.after(1) == []


def test_asking_changes_nothing() -> None:
    kept = Kept()
    kept.keep(1, 2, 3)
    kept.keep(1, 4)
    before = kept.cache.stats()
    used = [one.used for one in kept.cache.checkpoints()]
    kept.now += 1.0
    assert kept.after(1) == [4]
    assert kept.cache.stats() == before
    assert [one.used for one in kept.cache.checkpoints()] == used
