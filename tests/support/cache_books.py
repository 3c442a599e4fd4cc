"""Check a cache's counters against its records."""

from __future__ import annotations

from collections.abc import Sequence

from states.cache.checkpoint import Checkpoint
from states.cache.counters import CacheStats


def check_books(records: Sequence[Checkpoint], stats: CacheStats) -> None:
    """`records` are all that the cache knows, `stats` are those of the same moment."""
    assert stats.checkpoints == sum(record.resumable for record in records)
    assert stats.ghosts == len(records) - stats.checkpoints
    for tier in stats.tiers:
        sizes = [record.sizes[tier.tier] for record in records if tier.tier in record.sizes]
        assert (tier.used, tier.copies) == (sum(sizes), len(sizes))
        assert tier.used <= tier.capacity
