"""What the caches of many replicas keep, as that of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from states.cache.browse import CacheTree, TreeNode
from states.cache.snapshot import SnapshotNode


def join_nodes(replicas: Mapping[str, tuple[SnapshotNode, ...]], limit: int) -> tuple[SnapshotNode, ...]:
    """Return the positions of all replicas, one replica after the other, the first of each where they are too many."""
    most = max(limit // max(len(replicas), 1), 1)
    joined: list[SnapshotNode] = []
    for nodes in replicas.values():
        first = len(joined)
        kept = nodes if sum(map(len, replicas.values())) <= limit else nodes[:most]
        joined += (node if node.parent is None else replace(node, parent=first + node.parent) for node in kept)
    return tuple(joined[:limit])


def join_trees(replicas: Mapping[str, CacheTree], limit: int) -> CacheTree:
    """Return the positions of all replicas, each with an id that says where it is."""
    nodes = [_named(name, node) for name, tree in replicas.items() for node in tree.nodes]
    return CacheTree(
        tuple(nodes[:limit]),
        sum(tree.num_positions for tree in replicas.values()),
        len(nodes) > limit or any(tree.truncated for tree in replicas.values()),
    )


def split_position(position: str) -> tuple[str, str]:
    """Return the replica and its own id of a position that `join_trees` named."""
    replica, _, own = position.rpartition("-")
    return replica, own


def _named(replica: str, node: TreeNode) -> TreeNode:
    parent = None if node.parent is None else f"{replica}-{node.parent}"
    return replace(node, position=replace(node.position, id=f"{replica}-{node.position.id}"), parent=parent)
