"""A snapshot of the cache: its positions as a tree, with what each holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from states.cache.checkpoint import Checkpoint, CheckpointKind
from states.tokens import TOKEN_BYTES, unpack


@dataclass(frozen=True, slots=True)
class SnapshotNode:
    """One position; those above it come before it in the list."""

    parent: int | None  # index in the list of the nearest shorter position that is in it
    root: str
    start: int  # the parent's length
    length: int
    head: tuple[int, ...]  # the first tokens after the parent
    kind: CheckpointKind
    hits: int
    saves: int  # tokens between the next shorter checkpoint and this one, when it was last inserted or hit
    sizes: dict[str, int]  # bytes by tier; empty for a ghost entry
    has_logits: bool
    in_use: bool  # locked by a request


def snapshot(checkpoints: Iterable[Checkpoint], limit: int = 1000, head_tokens: int = 32) -> tuple[SnapshotNode, ...]:
    """The `limit` positions that were hit most, the longer first among equals, ordered by root and length.

    Called on the thread that owns the cache.
    """
    ranked = sorted(checkpoints, key=lambda checkpoint: (-checkpoint.hits, -checkpoint.length))
    shown = sorted(ranked[:limit], key=lambda checkpoint: (checkpoint.root, checkpoint.length))
    index = {checkpoint: number for number, checkpoint in enumerate(shown)}
    return tuple(_node(checkpoint, index, head_tokens) for checkpoint in shown)


def _node(checkpoint: Checkpoint, index: dict[Checkpoint, int], head_tokens: int) -> SnapshotNode:
    place = checkpoint.known_place()
    above = next((other for other in place.values_back() if other in index and other is not checkpoint), None)
    start = 0 if above is None else above.length
    head = place.tokens()[start * TOKEN_BYTES : (start + head_tokens) * TOKEN_BYTES]
    return SnapshotNode(
        parent=None if above is None else index[above],
        root=checkpoint.root,
        start=start,
        length=checkpoint.length,
        head=tuple(unpack(head)),
        kind=checkpoint.kind,
        hits=checkpoint.hits,
        saves=checkpoint.saves,
        sizes=dict(checkpoint.sizes),
        has_logits=checkpoint.has_logits,
        in_use=checkpoint.locks > 0,
    )
