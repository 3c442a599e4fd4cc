"""What the cache knows of one position on a token path: a checkpoint while a tier holds its state, else a path mark.

Knows its place and its sizes, not the tiers themselves nor the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from states.cache.tree import Place


class Tier(Enum):
    """Where the copies of a state are kept, the quickest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


class CheckpointKind(Enum):
    """Why a state was kept at its position."""

    PROMPT_END = "prompt_end"
    TURN = "turn"
    BRANCH = "branch"
    MARK = "mark"
    GENERATION_END = "generation_end"


@dataclass(slots=True, eq=False)
class Checkpoint:
    """One position. Identity is equality: a position has one record, whatever happens to its copies."""

    root: str
    kind: CheckpointKind
    label: str
    place: Place[Checkpoint] | None = None  # None once the tree has forgotten it
    has_logits: bool = False  # its copies keep the logits of its last token too
    sizes: dict[Tier, int] = field(default_factory=dict)  # bytes of the copy in each tier that has one
    saves: int = 0  # tokens between the next shorter checkpoint and this one, when it was last inserted or hit
    hits: int = 0
    locks: int = 0
    pinned: bool = False
    was_stored: bool = False

    @property
    def resumable(self) -> bool:
        """Whether some tier holds its state."""
        return bool(self.sizes)

    @property
    def held(self) -> bool:
        """Whether its copies must stay where they are."""
        return self.pinned or self.locks > 0

    def known_place(self) -> Place[Checkpoint]:
        """Its place; only for records that the tree knows."""
        assert self.place is not None, "the tree has forgotten this checkpoint"
        return self.place

    @property
    def length(self) -> int:
        """Its position: the number of tokens before it."""
        return self.known_place().length
