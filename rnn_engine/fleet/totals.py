"""What many replicas count and keep, as that of one engine: sums of counters, and joined lists of slots and caches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import fields, replace
from typing import Any, TypeVar

from rnn_engine.fleet.wire import Report
from rnn_engine.telemetry import EngineCounters, Histogram, SlotUse
from rnn_engine_states.cache.browse import CacheTree, TreeNode

T = TypeVar("T")

_OF_REQUESTS = frozenset({"request_seconds", "prompt_tokens", "completion_tokens", "cached_tokens", "outcomes"})
"""The counters that a server process keeps by itself, since it also sees the requests that no replica ran."""


def total_counters(own: EngineCounters, replicas: Iterable[EngineCounters]) -> EngineCounters:
    """Return the sum of the replicas' counters, with the server process's `own` values for the counters of requests."""
    total = add_up([EngineCounters(), *replicas])
    for name in _OF_REQUESTS:
        setattr(total, name, getattr(own, name))
    return total


def add_up(counts: Sequence[T]) -> T:
    """Add up numbers, or the fields of objects. None counts nothing, flags are joined by or, tiers by name."""
    known: list[Any] = [each for each in counts if each is not None]
    first: Any = known[0] if known else None
    match first:
        case None | str():
            return first  # type: ignore[return-value]
        case bool():
            total: Any = any(known)
        case int() | float():
            total = sum(known)
        case dict():
            total = {key: add_up([each[key] for each in known]) for key in first}
        case tuple():
            names = dict.fromkeys(tier.tier for tiers in known for tier in tiers)
            total = tuple(add_up([tier for tiers in known for tier in tiers if tier.tier == name]) for name in names)
        case Histogram():
            total = Histogram(first.bounds)
            total.counts = [sum(counts) for counts in zip(*(each.counts for each in known), strict=True)]
            total.sum = sum(each.sum for each in known)
        case _:
            total = copy(first)
            for name in vars(first) if isinstance(first, EngineCounters) else [each.name for each in fields(first)]:
                setattr(total, name, add_up([getattr(each, name) for each in known]))
    return total  # type: ignore[no-any-return]


def all_slot_uses(reports: Iterable[Report]) -> list[SlotUse]:
    """Return the request in each occupied slot of all replicas, with numbers of slots and requests across all."""
    uses: list[SlotUse] = []
    first = 0
    reports = list(reports)
    for number, report in enumerate(reports):
        for use in report.slots:
            request = use.request * len(reports) + number
            uses.append(replace(use, slot=first + use.slot, request=request))
        first += report.info.num_slots
    return uses


def join_trees(replicas: Mapping[str, CacheTree], limit: int) -> CacheTree:
    """Join trees, by replica name, into one of at most `limit` prefixes, whose ids include the replica's name.

    If there are more, it has the first ones of each replica.
    """
    trees = replicas.values()
    is_cut = sum(len(tree.nodes) for tree in trees) > limit
    most = max(limit // len(trees), 1) if is_cut else limit
    nodes = [_named(name, node) for name, tree in replicas.items() for node in tree.nodes[:most]]
    truncated = is_cut or any(tree.truncated for tree in trees)
    return CacheTree(tuple(nodes[:limit]), sum(tree.num_positions for tree in trees), truncated)


def split_position(position: str) -> tuple[str, str]:
    """Split the id of a cached prompt prefix from `join_trees` into the replica's name and the id at that replica."""
    replica, _, own = position.rpartition("-")
    return replica, own


def _named(replica: str, node: TreeNode) -> TreeNode:
    parent = None if node.parent is None else f"{replica}-{node.parent}"
    return replace(node, position=replace(node.position, id=f"{replica}-{node.position.id}"), parent=parent)
