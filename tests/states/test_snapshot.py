"""The tree of the cached positions that have the most hits."""

from __future__ import annotations

from rnn_engine_states.cache.browse import HEAD_TOKENS, CacheTree, TreeQuery, list_positions, make_tree
from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.checkpoint import CheckpointKind
from rnn_engine_states.cache.config import CacheConfig
from tests.support.toy_states import ROOT, ToyDevice, keep, toy_shape

SHAPE = toy_shape()
BYTES = 480  # of a state with its logits


def most_hit(cache: StateCache, limit: int = 1000) -> CacheTree:
    query = TreeQuery(limit=limit, by_hits=True)
    return make_tree(list_positions(cache.checkpoints(), cache.now(), query), query, bytes)


def test_positions_form_a_tree_with_what_they_hold() -> None:
    device = ToyDevice(SHAPE)
    cache = make_cache(SHAPE, "model", device, CacheConfig(host_capacity=3 * BYTES))
    system = list(range(50, 100))  # ASCII
    keep(cache, device, system)
    keep(cache, device, [*system, 1, 2])
    for _ in range(2):
        cache.release(cache.look_up(ROOT, [*system, 9]))
    keep(cache, device, [*system, 1, 2, 3, 4], logits=False)
    keep(cache, device, [7, 7], root="tuned")
    held = cache.look_up("tuned", [7, 7])

    nodes = most_hit(cache).nodes
    lengths = {node.position.id: node.position.length for node in nodes}
    seen = [
        (lengths.get(node.parent or ""), node.start, list(node.text.encode()), node.position.saves) for node in nodes
    ]
    assert seen == [(None, 0, [7, 7], 2), (None, 0, system[:HEAD_TOKENS], 50), (50, 50, [1, 2], 2), (52, 52, [3, 4], 2)]
    positions = [node.position for node in nodes]
    assert [position.sizes for position in positions] == [{"host": BYTES}, {"host": BYTES}, {}, {"host": BYTES - 96}]
    assert [position.hits for position in positions] == [1, 2, 0, 0]
    assert [position.in_use for position in positions] == [True, False, False, False]
    assert {position.kind for position in positions} == {CheckpointKind.PROMPT_END}
    cache.release(held)

    assert [node.position.length for node in most_hit(cache, 2).nodes] == [2, 50]
    assert most_hit(cache, 0).nodes == ()
