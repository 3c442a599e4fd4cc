"""A position on a token path: a checkpoint while a tier has its state, else a ghost entry; and the roots of paths."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from rnn_engine.errors import NotFoundError
from states.cache.tree import Place


class CheckpointKind(Enum):
    """Why a state was kept at its position."""

    PROMPT_END = "prompt_end"
    TURN = "turn"
    BRANCH = "branch"
    MARK = "mark"
    GENERATION_END = "generation_end"
    WAYPOINT = "waypoint"  # in case a later prompt leaves this one soon after; gives way before all others


class MissReason(Enum):
    """Why a look-up saved nothing. Where several hold, the last of them is told."""

    NO_PATHS = "no_paths"  # nothing is known for this initial state
    UNKNOWN_PROMPT = "unknown_prompt"  # the prompt's first token begins no known path
    NO_CHECKPOINT = "no_checkpoint"  # the prompt follows a known path, on which no state was kept before it leaves
    NO_LOGITS = "no_logits"  # a state is kept at the prompt's very end, but not the logits to go on from
    BEYOND_LIMIT = "beyond_limit"  # states are kept, all of them longer than the caller could use
    EVICTED = "evicted"  # a state was kept there and has been evicted
    NOT_FETCHED = "not_fetched"  # a state is kept in a slow tier alone, and was not read before the look-up
    DAMAGED = "damaged"  # a state was kept on disk, and its file can't be used any more


@dataclass(slots=True, eq=False)
class Checkpoint:
    """One position. Identity is equality: a position has one record, whatever happens to its copies."""

    root: str
    kind: CheckpointKind
    id: int = 0  # one that no other position of the cache has had
    used: float = 0.0  # when it was last inserted or hit, by the cache's clock
    place: Place[Checkpoint] | None = None  # None once the tree has forgotten it
    has_logits: bool = False  # its copies keep the logits of its last token too
    sizes: dict[str, int] = field(default_factory=dict)  # tier -> bytes of its copy, for each tier that has one
    saves: int = 0  # tokens between the next shorter checkpoint and this one, when it was last inserted or hit
    hits: int = 0
    locks: int = 0  # its copies stay where they are while there are any
    absence: MissReason = MissReason.NO_CHECKPOINT  # why no tier holds its state, while none does

    @property
    def resumable(self) -> bool:
        """Whether some tier holds its state."""
        return bool(self.sizes)

    @property
    def is_waypoint(self) -> bool:
        """Whether it gives way before all that are not."""
        return self.kind is CheckpointKind.WAYPOINT

    def known_place(self) -> Place[Checkpoint]:
        """Its place; only for records that the tree knows."""
        assert self.place is not None, "the tree has forgotten this checkpoint"
        return self.place

    @property
    def length(self) -> int:
        """Its position: the number of tokens before it."""
        return self.known_place().length

    def tokens_to_shorter(self) -> int:
        """How many tokens there are between the next shorter checkpoint on its path and this one.

        Waypoints, which are gone when others give way, count for each other alone.
        """
        above = (other for other in self.known_place().values_back() if self.is_waypoint or not other.is_waypoint)
        shorter = next((other for other in above if other is not self and other.resumable), None)
        return self.length - (0 if shorter is None else shorter.length)


def position_missing(position: str) -> NotFoundError:
    """Return the error for the id of a position that the cache does not know."""
    return NotFoundError(f"there is no kept position {position[:80]!r}; it may have been dropped or have given way")


# The roots under which checkpoints are kept: what a sequence starts from, and who shares it.
#
# A scope is a path of names, as `ann/1f3a`; prompts of one scope never go on from what another has kept. The empty one
# is for a server whose clients share everything.


def make_root(initial_state: str, scope: str) -> str:
    """Return the root for sequences that start from the state with this digest, in a scope."""
    return f"{initial_state}/{scope}" if scope else initial_state


def is_of_state(root: str, initial_state: str) -> bool:
    """Whether a root is for sequences that start from this state, in whatever scope."""
    return root.partition("/")[0] == initial_state


def is_within(root: str, scope: str) -> bool:
    """Whether a root is in a scope or in one below it."""
    own = root.partition("/")[2]
    return own == scope or own.startswith(f"{scope}/")
