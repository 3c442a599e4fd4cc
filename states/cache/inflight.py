"""Single flight: prompts that arrive together and share a beginning run it once.

The first prompt leads: it runs, and where others need its state it is asked to stop and keep a checkpoint. They wait
until it has passed that position, then look the cache up again and go on from there. If the leader dies, whoever of
the waiters asks first leads from what the cache has by then. Equal prompts, prompts that extend another, and prompts
that part from another somewhere are all one case: the position is how far they agree.

    wait = inflight.find(root, packed, saved)           # what the cache would save now
    if wait is not None: wait.claim(); keep the request back until wait.ready, then ask again
    lead = inflight.lead(root, packed, match.saved)     # it runs; those that are kept back may ask anew
    lead.plan(plan_checkpoints(...))                           # the cuts that the prompt has anyway
    while (cut := lead.next_cut()) is not None:         # ask anew after every chunk: others may have claimed
        run up to cut.position, keep a checkpoint there, lead.advance(cut.position)
    lead.close()                                        # at the prompt's end, or at once on any failure

Pure bookkeeping on the scheduler's one thread: no locks, no futures, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from states.cache.checkpoint import CheckpointKind
from states.cache.policy import CheckpointPoint
from states.tokens import TOKEN_BYTES, shared_tokens


class Lead:
    """A prompt that runs, with the cuts at which it and others want its state kept."""

    def __init__(self, table: InFlight, root: str, tokens: bytes, position: int) -> None:
        self._table = table
        self._cuts: dict[int, CheckpointPoint] = {}
        self.root = root
        self.tokens = tokens  # packed
        self.position = position  # tokens that have been run
        self.open = True

    @property
    def length(self) -> int:
        """The prompt's tokens."""
        return len(self.tokens) // TOKEN_BYTES

    def plan(self, cuts: Iterable[CheckpointPoint]) -> None:
        """Add the prompt's own cuts."""
        for cut in cuts:
            self._add(cut)

    def want(self, position: int, *, logits: bool) -> None:
        """Add a cut at which another prompt waits."""
        self._add(CheckpointPoint(position, CheckpointKind.BRANCH, logits))

    def next_cut(self) -> CheckpointPoint | None:
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

    def _add(self, cut: CheckpointPoint) -> None:
        assert self.position < cut.position <= self.length, f"{cut} after {self.position} of {self.length}"
        planned = self._cuts.get(cut.position)
        kind = cut.kind if planned is None or planned.kind is CheckpointKind.BRANCH else planned.kind
        logits = cut.logits or (planned is not None and planned.logits)
        self._cuts[cut.position] = CheckpointPoint(cut.position, kind, logits)


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """For a prompt that may wait until `lead` has passed `position`."""

    lead: Lead
    position: int
    logits: bool  # whether the prompt ends there, where it can't go on without them

    def claim(self) -> None:
        """Have the state kept there."""
        self.lead.want(self.position, logits=self.logits)

    @property
    def ready(self) -> bool:
        """Whether to look up and ask again: the state is there, or won't come."""
        return self.passed or not self.lead.open

    @property
    def passed(self) -> bool:
        """Whether the state was there to be kept; the cache may have had no room for it."""
        return self.lead.position >= self.position


class InFlight:
    """The prompts that are running now. Waiters hold nothing: one that leaves needs no farewell."""

    def __init__(self, min_shared: int = 32) -> None:
        """Nobody waits for a gain of fewer than `min_shared` tokens."""
        self._min_shared = min_shared
        self._leads: list[Lead] = []

    def __len__(self) -> int:
        return len(self._leads)

    def find(self, root: str, packed: bytes, saved: int, leads: Iterable[Lead] | None = None) -> Wait | None:
        """What a prompt should wait for of which the cache has `saved` tokens; None where it should run.

        That is where a running prompt, one of `leads` if given, is not behind what the cache has and will pass a
        state that saves enough more; the one that saves most.
        """
        best: Lead | None = None
        best_shared = saved + self._min_shared - 1
        for lead in self._leads if leads is None else leads:
            if lead.root != root or lead.position < saved:
                continue
            shared = shared_tokens(lead.tokens, packed)
            if shared > max(best_shared, lead.position):
                best, best_shared = lead, shared
        return None if best is None else Wait(best, best_shared, logits=best_shared * TOKEN_BYTES == len(packed))

    def lead(self, root: str, packed: bytes, saved: int) -> Lead:
        """Run a prompt of which `saved` tokens need not be; others may wait for it from now on."""
        lead = Lead(self, root, packed, saved)
        self._leads.append(lead)
        return lead

    def remove(self, lead: Lead) -> None:
        """Used by `Lead.close`."""
        if lead in self._leads:
            self._leads.remove(lead)
