"""The summary of a cache's states: its marks, and the reports of their changes."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_engine_states.cache.browse import (
    BLOCK_TOKENS,
    CacheSummary,
    Mark,
    SummaryChanges,
    block_digests,
    path_digest,
    unpack_marks,
)
from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.checkpoint import Checkpoint, CheckpointKind
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.cache.tree import TokenTree
from rnn_engine_states.tokens import TOKEN_BYTES, pack
from tests.support.toy_states import ToyDevice, toy_shape

LONG = list(range(2 * BLOCK_TOKENS + 5))


def make(states: int = 100) -> StateCache:
    shape = toy_shape()
    device = ToyDevice(shape, num_slots=1)
    device.start([1])
    return make_cache(shape, "toy", device, CacheConfig(host_capacity=states * shape.state_bytes))


def keep(cache: StateCache, tokens: Sequence[int], root: str = "none") -> None:
    cache.insert(root, tokens, 0, kind=CheckpointKind.PROMPT_END)


def changes(cache: StateCache, since: int | None = None) -> SummaryChanges:
    cache.summarise()
    assert cache.summary is not None
    return cache.summary.changes(since)


def marks(packed: bytes) -> list[Mark]:
    return list(unpack_marks(packed))


def test_a_mark_has_the_hashes_of_its_blocks_and_of_its_path() -> None:
    cache = make()
    keep(cache, LONG)
    [mark] = marks(changes(cache).kept)
    blocks = block_digests("none", pack(LONG))
    assert mark.blocks == blocks[1]
    assert mark.path == path_digest(blocks[1], pack(LONG)[2 * BLOCK_TOKENS * TOKEN_BYTES :])
    assert mark.length == len(LONG)


def test_hashes_are_those_of_whole_beginnings() -> None:
    packed = pack(LONG)
    first, second = block_digests("none", packed)
    assert block_digests("none", pack(LONG[:BLOCK_TOKENS])) == [first]
    assert block_digests("none", pack(LONG[BLOCK_TOKENS:]))[0] not in (first, second)
    assert block_digests("none", pack(LONG[: BLOCK_TOKENS - 1])) == []
    assert block_digests("none/ann", packed)[0] != first


def test_only_changes_are_told_to_those_who_know_the_rest() -> None:
    cache = make()
    keep(cache, LONG)
    first = changes(cache)
    assert (first.whole, len(marks(first.kept))) == (True, 1)
    keep(cache, LONG[:BLOCK_TOKENS])
    second = changes(cache, first.version)
    assert (second.whole, [mark.length for mark in marks(second.kept)], second.lost) == (False, [BLOCK_TOKENS], b"")
    cache.drop_all()
    third = changes(cache, second.version)
    assert (third.whole, third.kept, len(marks(third.lost))) == (False, b"", 2)
    nothing = changes(cache, third.version)
    assert (nothing.whole, nothing.kept, nothing.lost, nothing.version) == (False, b"", b"", third.version)


def test_what_came_and_went_is_told_once() -> None:
    cache = make()
    version = changes(cache).version
    for _ in range(3):
        keep(cache, LONG)
        cache.drop_all()
    assert (changes(cache, version).kept, len(marks(changes(cache, version).lost))) == (b"", 1)


def test_what_is_evicted_is_told() -> None:
    cache = make(states=2)
    version = changes(cache).version
    for first in range(3):
        keep(cache, [first, *LONG])
    told = changes(cache, version)
    assert (len(marks(told.kept)), len(marks(told.lost))) == (2, 1)
    assert sorted(marks(told.kept), key=repr) == sorted(marks(changes(cache).kept), key=repr)


def test_short_beginnings_are_not_told() -> None:
    cache = make()
    keep(cache, LONG[: BLOCK_TOKENS - 1])
    assert changes(cache).kept == b""


def test_a_summary_is_bounded_and_whoever_has_missed_too_much_is_told_all() -> None:
    tree: TokenTree[Checkpoint] = TokenTree()
    summary = CacheSummary(most_marks=3, most_changes=4)
    version = summary.changes(None).version
    for first in range(5):
        checkpoint = Checkpoint("none", CheckpointKind.PROMPT_END)
        tokens = pack([first, *LONG])
        checkpoint.place = tree.put(tokens, checkpoint)
        summary.keep(checkpoint)
    told = summary.changes(version)
    assert told.whole
    assert [mark.blocks for mark in marks(told.kept)] == [
        block_digests("none", pack([first, *LONG]))[-1] for first in (2, 3, 4)
    ]
    assert summary.changes(told.version + 1).whole  # a version of another summary
