"""The tree of cached positions that the server shows."""

from __future__ import annotations

from rnn_engine_states.cache.browse import snapshot
from rnn_engine_states.cache.checkpoint import CheckpointKind
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.cache.upkeep import make_cache
from tests.support.toy_states import ROOT, ToyDevice, keep, toy_shape

SHAPE = toy_shape()
BYTES = 480  # of a state with its logits


def test_positions_form_a_tree_with_what_they_hold() -> None:
    device = ToyDevice(SHAPE)
    cache = make_cache(SHAPE, "model", device, CacheConfig(host_capacity=3 * BYTES))
    system = list(range(100, 150))
    keep(cache, device, system)
    keep(cache, device, [*system, 1, 2])
    for _ in range(2):
        cache.release(cache.look_up(ROOT, [*system, 9]))
    keep(cache, device, [*system, 1, 2, 3, 4], logits=False)
    keep(cache, device, [7, 7], root="tuned")
    held = cache.look_up("tuned", [7, 7])

    nodes = snapshot(cache.checkpoints(), head_tokens=3)
    seen = [(node.parent, node.start, node.length, node.head, node.saves) for node in nodes]
    assert seen == [
        (None, 0, 50, (100, 101, 102), 50),
        (0, 50, 52, (1, 2), 2),
        (1, 52, 54, (3, 4), 2),
        (None, 0, 2, (7, 7), 2),
    ]
    assert [node.sizes for node in nodes] == [{"host": BYTES}, {}, {"host": BYTES - 96}, {"host": BYTES}]
    assert [node.hits for node in nodes] == [2, 0, 0, 1]
    assert [node.in_use for node in nodes] == [False, False, False, True]
    assert {node.kind for node in nodes} == {CheckpointKind.PROMPT_END}
    cache.release(held)

    assert [node.length for node in snapshot(cache.checkpoints(), limit=2)] == [50, 2]
    assert snapshot([]) == ()
