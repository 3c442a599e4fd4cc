"""What is told of the cache of states."""

from __future__ import annotations

from server.schemas.cache import CacheTier, CacheTotals
from states.cache.counters import CacheStats, TierStats


def cache_totals(stats: CacheStats) -> CacheTotals:
    """Return the counts since the start."""
    return {
        "look_ups": stats.look_ups,
        "hits": stats.hits,
        "exact_hits": stats.exact_hits,
        "tokens_looked_up": stats.tokens_looked_up,
        "tokens_saved": stats.tokens_saved,
        "misses": {reason.value: count for reason, count in stats.misses.items()},
        "checkpoints": stats.checkpoints,
        "path_marks": stats.ghosts,
        "not_stored": stats.not_stored,
        "writes_refused": stats.writes_refused,
        "lost_files": stats.lost_files,
        "failed_writes": stats.failed_writes,
        "device_logits_bytes": stats.device_logits_bytes,
        "index_bytes": stats.index_bytes,
        "index_capacity": stats.index_capacity,
    }


def cache_tier(stats: TierStats) -> CacheTier:
    """Return what one tier holds, and what came and went."""
    return {
        "tier": stats.tier,
        "capacity": stats.capacity,
        "used": stats.used,
        "copies": stats.copies,
        "hits": stats.hits,
        "stored": stats.stored,
        "promotions": stats.promotions,
        "demotions": stats.demotions,
        "evictions": stats.evictions,
    }
