"""The requests that wait for a slot, and which of them comes next."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Protocol

from rnn_engine.requests import Client, GenerateRequest
from rnn_engine.scheduler.checkpoints import PromptPrefix, Wait
from states.cache.fetch import Fetch
from states.cache.tiers.shared import Inquiry

OLDEST_EVERY = 8


class Queued(Protocol):
    """A request without slots: one that has not begun (`Waiting`), or that has given them up (`Suspended`)."""

    @property
    def key(self) -> int: ...

    @property
    def request(self) -> GenerateRequest: ...

    @property
    def num_slots(self) -> int:
        """How many slots it needs."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it would start if it had its slots."""
        ...

    def release(self) -> None:
        """Let go of what it holds or waits for."""
        ...


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
    def num_slots(self) -> int:
        return len(self.members)

    @property
    def ready(self) -> bool:
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

    def release(self) -> None:
        """Wait for no state to be read any more."""
        for member in self.members:
            member.set_fetch(None)
            if member.inquiry is not None:
                member.inquiry.cancel()


class _Line:
    """The requests of one client, of which those that have begun come first."""

    def __init__(self) -> None:
        self.turn = 0  # clients that are equal otherwise come in ascending order of it
        self._begun: dict[int, Queued] = {}  # oldest first, as the next
        self._waiting: dict[int, Queued] = {}
        self._num_taken = 0  # of `_waiting`

    def __len__(self) -> int:
        return len(self._begun) + len(self._waiting)

    def __iter__(self) -> Iterator[Queued]:
        return itertools.chain(self._begun.values(), self._waiting.values())

    def add(self, queued: Queued, *, has_begun: bool) -> None:
        (self._begun if has_begun else self._waiting)[queued.key] = queued

    def remove(self, key: int) -> Queued:
        queued = self._begun.pop(key, None)
        return self._waiting.pop(key) if queued is None else queued

    def take(self, key: int) -> None:
        """Remove a request because it was given its slots."""
        if self._begun.pop(key, None) is None:
            del self._waiting[key]
            self._num_taken += 1

    def find(self, key: int) -> Queued:
        return self._begun.get(key) or self._waiting[key]

    def ready(self) -> Iterator[Queued]:
        """Yield those that would start, as `Queue.ready` does."""
        yield from [queued for queued in self._begun.values() if queued.ready]
        by_arrival = [queued for queued in self._waiting.values() if queued.ready]
        by_priority = sorted(by_arrival, key=lambda queued: -queued.request.priority)
        orders = iter(by_arrival), iter(by_priority)
        offered: set[int] = set()
        while len(offered) < len(by_arrival):
            order = orders[self._num_taken % OLDEST_EVERY < OLDEST_EVERY - 1]
            queued = next(one for one in order if one.key not in offered)
            offered.add(queued.key)
            if queued.ready:
                yield queued


class Queue:
    """The client that holds the fewest slots for its weight comes first; of equal ones, the one whose turn it is.

    Of a client's requests those come first that have begun and were suspended, then the greatest priority, then the
    earliest arrival; one of every 8 slots that a client gets goes to its earliest anyway. So a request sees at most 8
    others of its client start for each one that is before it in order of arrival, and 7 besides, however many of a
    greater priority keep coming.
    """

    def __init__(self) -> None:
        self._lines: dict[Client, _Line] = {}  # none that is empty
        self._clients: dict[int, Client] = {}  # by request, oldest first
        self._turns = itertools.count()

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Queued]:
        return itertools.chain.from_iterable(self._lines.values())

    @property
    def num_ready(self) -> int:
        """How many slots those would take that would start if there were slots for all."""
        return sum(queued.num_slots for queued in self if queued.ready)

    @property
    def keys(self) -> list[int]:
        """In order of arrival."""
        return list(self._clients)

    @property
    def clients(self) -> list[Client]:
        """Those that have requests here."""
        return list(self._lines)

    def add(self, queued: Queued, *, has_begun: bool = False) -> None:
        """Queue a request; one that `has_begun` comes before the others of its client, which has had its turn."""
        client = self._clients[queued.key] = queued.request.client
        line = self._lines.get(client)
        if line is None:
            line = self._lines[client] = _Line()
            line.turn = next(self._turns)
        line.add(queued, has_begun=has_begun)
        if has_begun:
            line.turn = next(self._turns)

    def find(self, key: int) -> Queued | None:
        """Return the request with this key, if it is here."""
        client = self._clients.get(key)
        return None if client is None else self._lines[client].find(key)

    def discard(self, key: int) -> None:
        """Forget a request, if it is here."""
        client = self._clients.pop(key, None)
        if client is not None:
            self._lines[client].remove(key).release()
            self._drop_empty(client)

    def take(self, queued: Queued) -> None:
        """Remove a request because it was given its slots."""
        client = self._clients.pop(queued.key)
        line = self._lines[client]
        line.take(queued.key)
        line.turn = next(self._turns)
        self._drop_empty(client)

    def ready(self, held: Mapping[Client, int] | None = None) -> Iterator[Queued]:
        """Yield those that would start, each once, the next first. They may be taken or set to wait meanwhile.

        `held` are the slots that clients hold, and is looked at before each; None is nobody.
        """
        held = Counter() if held is None else held
        orders = [(client, line, line.ready()) for client, line in self._lines.items()]
        while orders:
            place = 0
            if len(orders) > 1:
                ranks = [(held.get(client, 0) / client.weight, line.turn) for client, line, _ in orders]
                place = ranks.index(min(ranks))
            queued = next(orders[place][2], None)
            if queued is None:
                del orders[place]
            else:
                yield queued

    def _drop_empty(self, client: Client) -> None:
        if not self._lines[client]:
            del self._lines[client]
