"""The requests that wait for a slot, and which of them comes next."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass, field

from rnn_engine.requests import GenerateRequest
from rnn_engine.scheduler.checkpoints import PromptPrefix, Wait
from states.cache.fetch import Fetch
from states.cache.tiers.shared import Inquiry

OLDEST_EVERY = 8


@dataclass(slots=True, eq=False)
class Waiting:
    """A request without a slot, or of a mix what is to run from one of its states."""

    key: int
    request: GenerateRequest
    prefix: PromptPrefix
    arrived: float = 0.0  # by the scheduler's clock
    context: Context = field(default_factory=copy_context)  # whoever asked; lines of the log tell it
    wait: Wait | None = None  # for what a running request shares with it
    asked: bool = False  # whether `inquiry` was begun, if there is anybody to be asked
    inquiry: Inquiry | None = None  # whether other servers have kept more of the prompt
    fetch: Fetch | None = None  # of the state that it goes on from
    others: tuple[Waiting, ...] = ()  # of a mix: those of its further states, which start together with this one

    @property
    def members(self) -> tuple[Waiting, ...]:
        """This and the others; each needs a slot."""
        return (self, *self.others)

    @property
    def ready(self) -> bool:
        """Whether it would start if it had as many slots as it needs."""
        if self.wait is not None and not self.wait.ready:
            return False
        if any(read is not None and not read.done for read in (self.inquiry, self.fetch)):
            return False
        return not self.others or all(other.ready for other in self.others)

    def set_fetch(self, fetch: Fetch | None) -> None:
        """Wait for `fetch` from now on, and release the one before."""
        before, self.fetch = self.fetch, fetch
        if before is not None:
            before.release()

    def end_fetches(self) -> None:
        """Wait for no state to be read any more."""
        for member in self.members:
            member.set_fetch(None)
            if member.inquiry is not None:
                member.inquiry.cancel()


class Queue:
    """The greatest priority comes first, then the earliest arrival; one of every 8 slots goes to the earliest anyway.

    So a request sees at most 8 others start for each one that is before it in order of arrival, and 7 besides,
    however many of a greater priority keep coming.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, Waiting] = {}  # oldest first
        self._taken = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def num_ready(self) -> int:
        """How many slots those would take that would start if there were slots for all."""
        return sum(1 + len(waiting.others) for waiting in self._waiting.values() if waiting.ready)

    @property
    def keys(self) -> list[int]:
        """In order of arrival."""
        return list(self._waiting)

    def add(self, waiting: Waiting) -> None:
        self._waiting[waiting.key] = waiting

    def discard(self, key: int) -> None:
        """Forget a request, if it is here."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.end_fetches()

    def take(self, waiting: Waiting) -> None:
        """Remove a request because it was given its slots."""
        del self._waiting[waiting.key]
        self._taken += 1

    def ready(self) -> Iterator[Waiting]:
        """Yield those that would start, each once, the next first. They may be taken or set to wait meanwhile."""
        by_arrival = [waiting for waiting in self._waiting.values() if waiting.ready]
        by_priority = sorted(by_arrival, key=lambda waiting: -waiting.request.priority)
        orders = iter(by_arrival), iter(by_priority)
        offered: set[int] = set()
        while len(offered) < len(by_arrival):
            order = orders[self._taken % OLDEST_EVERY < OLDEST_EVERY - 1]
            waiting = next(one for one in order if one.key not in offered)
            offered.add(waiting.key)
            if waiting.ready:
                yield waiting
