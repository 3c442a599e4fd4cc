"""`Checkpoint`, the record of a position on a path of tokens (a ghost entry if no tier has its state), and roots."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from rnn_engine.errors import NotFoundError

if TYPE_CHECKING:
    from rnn_engine_states.cache.tree import Place


class CheckpointKind(Enum):
    """The reason why a checkpoint was saved at its position."""

    PROMPT_END = "prompt_end"
    TURN = "turn"
    BRANCH = "branch"
    MARK = "mark"
    GENERATION_END = "generation_end"
    WAYPOINT = "waypoint"  # in case a later prompt leaves this one soon after it; evicted before all others


class MissReason(Enum):
    """The reason why a look-up found no usable checkpoint. If several apply, the one listed last here is reported."""

    NO_PATHS = "no_paths"  # nothing is known for this initial state
    UNKNOWN_PROMPT = "unknown_prompt"  # the prompt's first token begins no known path
    NO_CHECKPOINT = "no_checkpoint"  # the prompt follows a known path, but no state was kept on the part they share
    NO_LOGITS = "no_logits"  # a state is kept at the prompt's very end, but without logits
    BEYOND_LIMIT = "beyond_limit"  # states are kept, but all are longer than the caller's limit
    EVICTED = "evicted"  # a state was kept there and has been evicted
    NOT_FETCHED = "not_fetched"  # a state is kept only in a slow tier, and was not read before the look-up
    DAMAGED = "damaged"  # a state was kept, but its copy can't be read any more


@dataclass(slots=True, eq=False)
class Checkpoint:
    """The record of one position on a token path: its kind, when it was used, and the sizes of its copies in the tiers.

    Compared by identity: a position has one record, whatever happens to its copies.
    """

    root: str
    kind: CheckpointKind
    id: int = 0  # never used for another position of the cache
    used: float = 0.0  # when it was last inserted or hit, by the cache's clock
    place: Place[Checkpoint] | None = None  # None after the tree has forgotten it
    has_logits: bool = False  # its copies include the logits after its last token
    sizes: dict[str, int] = field(default_factory=dict)  # tier -> bytes of its copy, for each tier that has one
    saves: int = 0  # tokens between the next shorter checkpoint and this one, when it was last inserted or hit
    hits: int = 0
    locks: int = 0  # while there are any, its copies stay in their tiers
    absence: MissReason = MissReason.NO_CHECKPOINT  # why no tier has its state, if none has

    @property
    def resumable(self) -> bool:
        return bool(self.sizes)

    @property
    def is_waypoint(self) -> bool:
        """Whether this is a waypoint: a checkpoint within a prompt that is evicted before all other kinds."""
        return self.kind is CheckpointKind.WAYPOINT

    def known_place(self) -> Place[Checkpoint]:
        """Return the checkpoint's place in the token tree. The checkpoint must still be in the tree."""
        assert self.place is not None, "the tree has forgotten this checkpoint"
        return self.place

    @property
    def length(self) -> int:
        return self.known_place().length

    def tokens_to_shorter(self) -> int:
        """Return the tokens from the next shorter checkpoint to this one; waypoints count only for waypoints."""
        above = (other for other in self.known_place().values_back() if self.is_waypoint or not other.is_waypoint)
        shorter = next((other for other in above if other is not self and other.resumable), None)
        return self.length - (0 if shorter is None else shorter.length)


def position_missing(position: str) -> NotFoundError:
    """Return the error for the id of a position that the cache does not know."""
    return NotFoundError(f"there is no kept position {position[:80]!r}; it may have been dropped or evicted")


# The roots under which checkpoints are kept. A root names the initial state of a sequence, and the scope whose clients
# share the checkpoints.
#
# A scope is a path of names, as `ann/1f3a`. A prompt of one scope never continues from a checkpoint of another. The
# empty scope is for a server whose clients share everything.


def make_root(initial_state: str, scope: str) -> str:
    """Return the root of all token paths in a `scope` of clients that start from the state with this digest."""
    return f"{initial_state}/{scope}" if scope else initial_state


def is_of_state(root: str, initial_state: str) -> bool:
    """Return True if the token paths under `root` start from the state with this digest, in any scope."""
    return root.partition("/")[0] == initial_state


def is_within(root: str, scope: str) -> bool:
    """Return True if the scope of the path root `root` is `scope` or lies below it."""
    own = root.partition("/")[2]
    return own == scope or own.startswith(f"{scope}/")
