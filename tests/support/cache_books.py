"""Checks of a cache's counters against its records."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_engine_states.cache.cache import StateCache
from rnn_engine_states.cache.checkpoint import Checkpoint
from rnn_engine_states.cache.config import CacheStats
from rnn_engine_states.cache.tree import TokenTree


def check_books(records: Sequence[Checkpoint], stats: CacheStats) -> None:
    """Check counters against records. `records` are all of the cache's, `stats` are of the same moment."""
    assert stats.checkpoints == sum(record.resumable for record in records)
    assert stats.ghosts == len(records) - stats.checkpoints
    for tier in stats.tiers:
        sizes = [record.sizes[tier.tier] for record in records if tier.tier in record.sizes]
        assert (tier.used, tier.copies) == (sum(sizes), len(sizes))
        assert tier.used <= tier.capacity


def check_cache(cache: StateCache) -> None:
    """Check that each record of a cache is a copy or a ghost entry, that its sums are right and its bounds hold."""
    records, stats = cache.checkpoints(), cache.stats()
    check_books(records, stats)
    positions = cache._positions
    assert set(positions._ghosts) == {record for record in records if not record.resumable}
    assert positions._ghost_tokens == sum(record.length for record in positions._ghosts) <= positions._max_ghost_tokens
    assert positions.num_bytes == sum(tree.num_bytes for tree in positions._trees.values())
    for root, tree in positions._trees.items():
        again: TokenTree[Checkpoint] = TokenTree()
        for record in records:
            if record.root == root:
                again.put(record.known_place().tokens(), record)
        assert tree.num_bytes == again.num_bytes
    for tier in cache.tiers:
        assert set(tier.queue) == {record for record in records if tier.name in record.sizes}
    if all(record.locks == 0 for record in records):
        assert stats.index_bytes <= stats.index_capacity
