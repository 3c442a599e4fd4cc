"""Single flight: prompts that arrive together and share a beginning run it once.

The first prompt leads: it runs, and where others need its state it is asked to stop and keep a checkpoint. They wait
until it has passed that position, then look the cache up again and go on from there. If the leader dies, whoever of
the waiters asks first leads from what the cache has by then. Equal prompts, prompts that extend another, and prompts
that part from another somewhere are all one case: the position is how far they agree.

    role = inflight.join(root, prompt, match.saved)     # after the look-up; release the match where role is a Wait
    if isinstance(role, Wait): queue the request until role.ready, then look up and join again
    role.plan(plan_cuts(...))                           # the cuts that the prompt has anyway
    while (cut := role.next_cut()) is not None:         # ask anew after every chunk: others may have joined
        run up to cut.position, keep a checkpoint there, role.advance(cut.position)
    role.close()                                        # at the prompt's end, or at once on any failure

Pure bookkeeping on the scheduler's one thread: no locks, no futures, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from states.checkpoint import CheckpointKind
from states.policy import Cut
from states.tokens import TOKEN_BYTES, pack, shared_tokens


class Lead:
    """A prompt that runs, with the cuts at which it and others want its state kept."""

    def __init__(self, table: InFlight, root: str, tokens: bytes, position: int) -> None:
        self._table = table
        self._cuts: dict[int, Cut] = {}
        self.root = root
        self.tokens = tokens  # packed
        self.position = position  # tokens that have been run
        self.open = True

    @property
    def length(self) -> int:
        """The prompt's tokens."""
        return len(self.tokens) // TOKEN_BYTES

    def plan(self, cuts: Iterable[Cut]) -> None:
        """Add the prompt's own cuts."""
        for cut in cuts:
            self._add(cut)

    def want(self, position: int, *, logits: bool) -> None:
        """Add a cut at which another prompt waits."""
        self._add(Cut(position, CheckpointKind.BRANCH, logits))

    def next_cut(self) -> Cut | None:
        """The nearest cut that has not been reached."""
        return self._cuts[min(self._cuts)] if self._cuts else None

    def advance(self, position: int) -> None:
        """The prompt has been run up to here, and the checkpoints up to here are in the cache."""
        assert self.position <= position <= self.length, f"from {self.position} to {position} of {self.length}"
        self.position = position
        self._cuts = {at: cut for at, cut in self._cuts.items() if at > position}

    def close(self) -> None:
        """The prompt is done, or will never be. Idempotent."""
        self.open = False
        self._table.remove(self)

    def _add(self, cut: Cut) -> None:
        assert self.position < cut.position <= self.length, f"{cut} after {self.position} of {self.length}"
        planned = self._cuts.get(cut.position)
        kind = cut.kind if planned is None or planned.kind is CheckpointKind.BRANCH else planned.kind
        logits = cut.logits or (planned is not None and planned.logits)
        self._cuts[cut.position] = Cut(cut.position, kind, logits)


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """A prompt that waits until `lead` has passed `position`."""

    lead: Lead
    position: int

    @property
    def ready(self) -> bool:
        """Whether to look up and join again: the state is there, or won't come."""
        return not self.lead.open or self.lead.position >= self.position


class InFlight:
    """The prompts that are running now. Waiters hold nothing: one that leaves needs no farewell."""

    def __init__(self, min_shared: int = 32) -> None:
        """Nobody waits for a gain of fewer than `min_shared` tokens."""
        self._min_shared = min_shared
        self._leads: list[Lead] = []

    def __len__(self) -> int:
        return len(self._leads)

    def join(self, root: str, tokens: Sequence[int], saved: int) -> Lead | Wait:
        """What a prompt should do of which the cache has `saved` tokens.

        It waits where a running prompt is not behind what the cache has and will pass a state that saves enough more.
        """
        packed = pack(tokens)
        best: Lead | None = None
        best_shared = saved + self._min_shared - 1
        for lead in self._leads:
            if lead.root != root or lead.position < saved:
                continue
            shared = shared_tokens(lead.tokens, packed)
            if shared > max(best_shared, lead.position):
                best, best_shared = lead, shared
        if best is not None:
            # whoever ends there can't go on without the logits
            best.want(best_shared, logits=best_shared * TOKEN_BYTES == len(packed))
            return Wait(best, best_shared)
        lead = Lead(self, root, packed, saved)
        self._leads.append(lead)
        return lead

    def remove(self, lead: Lead) -> None:
        """Used by `Lead.close`."""
        if lead in self._leads:
            self._leads.remove(lead)
