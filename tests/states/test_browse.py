"""The tree of cached positions with their texts: filtered, cut at a depth and bounded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rnn_engine.errors import NotFoundError
from rnn_engine_states.cache import browse
from rnn_engine_states.cache.browse import HEAD_TOKENS, CacheTree, TreeQuery, list_positions, make_tree
from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.config import CacheConfig
from tests.support.toy_states import ROOT, ToyDevice, keep, toy_shape

TEXTS = ("Be brief.", "Be brief. Hi é", "Be brief. Hi é there", "Be brief. Bye", "Other")


class Kept:
    """A cache whose tokens are bytes. Its clock counts the texts that were kept."""

    def __init__(self, texts: Sequence[str] = TEXTS) -> None:
        self.now = 0.0
        self.device = ToyDevice(toy_shape(vocab=256))
        self.cache: StateCache = make_cache(
            self.device.shape, "model", self.device, CacheConfig(host_capacity=1 << 20), clock=lambda: self.now
        )
        for text in texts:
            self.keep(text)

    def keep(self, text: str, root: str = ROOT) -> None:
        self.now += 1.0
        keep(self.cache, self.device, list(text.encode()), root=root)

    def tree(self, text: str = "", under: str | None = None, depth: int | None = None, limit: int = 200) -> CacheTree:
        query = TreeQuery(text, under, depth, limit)
        return make_tree(list_positions(self.cache.checkpoints(), self.now, query), query, bytes)

    def texts(self, text: str = "", under: str | None = None, depth: int | None = None, limit: int = 200) -> list[str]:
        return [node.text for node in self.tree(text, under, depth, limit).nodes]

    def id_of(self, text: str) -> str:
        return next(node.position.id for node in self.tree().nodes if node.text == text)


def test_nodes_come_from_the_roots_down_the_last_used_first() -> None:
    kept = Kept()
    tree = kept.tree()
    assert [(node.text, node.start, node.position.length, node.num_children) for node in tree.nodes] == [
        ("Other", 0, 5, 0),
        ("Be brief.", 0, 9, 2),
        (" Bye", 9, 13, 0),
        (" Hi é", 9, 15, 1),
        (" there", 15, 21, 0),
    ]
    parents = {node.position.id: node.text for node in tree.nodes}
    assert [parents.get(node.parent or "") for node in tree.nodes] == [None, None, "Be brief.", "Be brief.", " Hi é"]
    assert [node.position.idle_seconds for node in tree.nodes] == [0, 4, 1, 3, 2]
    assert (tree.num_positions, tree.truncated) == (5, False)
    kept.now += 1.0
    kept.cache.release(kept.cache.look_up(ROOT, list(b"Be brief. Hm")))
    assert kept.texts()[0] == "Be brief."


@pytest.mark.parametrize(
    ("text", "found", "matches"),
    [
        ("HI", ["Be brief.", " Hi é"], [" Hi é"]),
        ("f. b", ["Be brief.", " Bye"], [" Bye"]),  # begins in the text above it
        ("é th", ["Be brief.", " Hi é", " there"], [" there"]),
        ("be", ["Be brief."], ["Be brief."]),
        ("nothing", [], []),
    ],
)
def test_a_filter_tells_matches_and_what_lies_above(text: str, found: list[str], matches: list[str]) -> None:
    tree = Kept().tree(text)
    assert [node.text for node in tree.nodes] == found
    assert [node.text for node in tree.nodes if node.is_match] == matches
    assert not tree.truncated


def test_a_part_of_the_tree_and_a_depth() -> None:
    kept = Kept()
    assert kept.texts(depth=0) == ["Other", "Be brief."]
    assert kept.tree(depth=0).truncated
    assert kept.texts(under=kept.id_of(" Hi é")) == [" Hi é", " there"]
    assert kept.texts(under=kept.id_of("Be brief."), depth=1) == ["Be brief.", " Bye", " Hi é"]
    with pytest.raises(NotFoundError, match="there is no kept position 'x'"):
        kept.tree(under="x")


def test_a_limit_keeps_what_was_used_last_with_what_lies_above() -> None:
    kept = Kept()
    assert kept.texts(limit=1) == ["Other"]
    assert kept.texts(limit=3) == ["Other", "Be brief.", " Bye"]
    assert kept.tree(limit=3).truncated
    assert kept.texts(limit=0) == []


def test_what_is_not_looked_at_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    tree = make_tree(list_positions(kept.cache.checkpoints(), kept.now, TreeQuery(), most=2), TreeQuery(), bytes)
    assert ([node.text for node in tree.nodes], tree.num_positions, tree.truncated) == (
        ["Other", "Be brief. Bye"],
        5,
        True,
    )
    monkeypatch.setattr(browse, "MOST_SEARCHED", 12)
    assert kept.tree("there").truncated


def test_long_texts_are_cut_and_may_span_the_blocks_of_the_index() -> None:
    long = "x" * 1000
    kept = Kept((long, f"{long} and on", f"{long}{'y' * HEAD_TOKENS}"))
    assert [(node.text, node.is_whole) for node in kept.tree().nodes] == [
        ("x" * HEAD_TOKENS, False),
        ("y" * HEAD_TOKENS, True),
        (" and on", True),
    ]
    assert kept.texts("xx and") == ["x" * HEAD_TOKENS, " and on"]


def test_roots_have_trees_of_their_own() -> None:
    kept = Kept(())
    kept.keep("Hi")
    kept.keep("Hi there", root="pirate")
    assert [(node.position.root, node.text) for node in kept.tree().nodes] == [("pirate", "Hi there"), (ROOT, "Hi")]


def test_a_position_is_found_and_dropped_by_its_id_but_not_while_it_is_locked() -> None:
    kept = Kept()
    there = kept.id_of(" there")
    assert bytes(kept.cache.find_position(there).known_place().tokens()[::4]).decode() == "Be brief. Hi é there"
    match = kept.cache.look_up(ROOT, list("Be brief. Hi é there".encode()))
    assert [node.position.in_use for node in kept.tree(under=there).nodes] == [True]
    assert not kept.cache.drop_position(there)
    kept.cache.release(match)
    assert kept.cache.drop_position(there)
    assert kept.texts() == ["Other", "Be brief.", " Bye", " Hi é"]
    with pytest.raises(NotFoundError):
        kept.cache.drop_position(there)
