"""The slots of a runner in which sequences run: which are free, and who holds the others.

A slot is free although a run of the sequence before is in flight there: the state that the next one starts from is
written after it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

from rnn_engine.requests import Client
from rnn_engine.scheduler.member import Member
from rnn_engine.scheduler.sequence import LiveSequence
from rnn_engine.telemetry import SlotUse


class Slots:
    """Free slots and live requests. A slot that was taken is given back, or held by a member until its release."""

    def __init__(self, count: int) -> None:
        self.live: dict[int, LiveSequence] = {}  # by request, oldest first; none that was released
        self._members: dict[int, Member] = {}  # by slot, oldest first: all members of those
        self.held: Counter[Client] = Counter()  # slots; no client without any
        self._paused: set[int] = set()  # keys of live ones that take part in no step
        self._leaving: set[int] = set()  # keys of those that are to be suspended, which take part in no further step
        self._late: set[int] = set()  # keys of those that await their masks
        self._since: dict[int, int] = {}  # by request: the position at which it got its slots
        self._free = list(range(count))  # a heap

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_advancing(self) -> int:
        """How many slots are held by requests that are not paused, and do not await their masks."""
        resting = self._paused | self._late if self._late else self._paused
        return len(self._members) - sum(len(self.live[key].members) for key in resting)

    @property
    def num_late(self) -> int:
        """How many requests await their masks."""
        return len(self._late)

    @property
    def ready(self) -> list[LiveSequence]:
        """Those that awaited their masks and can go on."""
        return [self.live[key] for key in sorted(self._late) if self.live[key].can_go_on]

    @property
    def lowest_free(self) -> int | None:
        """The free slot that is taken next, without taking it; None where all are taken."""
        return self._free[0] if self._free else None

    def take(self) -> int:
        """Take a free slot; there must be one."""
        return heapq.heappop(self._free)

    def give_back(self, slot: int) -> None:
        """Make a slot free that was taken and in which no sequence runs."""
        heapq.heappush(self._free, slot)

    def hold(self, live: LiveSequence) -> None:
        """Let the members of a request hold the slots that were taken for them."""
        self.live[live.key] = live
        self.held[live.request.client] += len(live.members)
        self._since[live.key] = live.position
        for member in live.members:
            self._members[member.slot] = member
        self.note_mask(live)

    def pause(self, key: int, paused: bool) -> None:
        """Leave a request out of `runnable`, or let it in again where not `paused`. No error if it is not live."""
        if paused and key in self.live:
            self._paused.add(key)
        else:
            self._paused.discard(key)

    def note_mask(self, live: Member) -> None:
        """Take note of whether the request of `live`, which is live, awaits its mask."""
        if live.awaits_mask:
            self._late.add(live.key)
        else:
            self._late.discard(live.key)

    def runnable(self) -> list[Member]:
        """The members that a step that is submitted now can run."""
        return self._taking_part([one for one in self._members.values() if one.can_run])

    def uses(self) -> list[SlotUse]:
        """What each slot that is held is used for, the oldest request first. For any thread."""
        return [member.use(paused=member.key in self._paused) for member in list(self._members.values())]

    def runnable_ahead(self) -> list[Member]:
        """The same while a step is in flight; none where it gives a token that the host has to see first."""
        members = []
        for one in self._members.values():
            if one.can_run:
                members.append(one)
            elif one.awaits_token:
                return []
        return self._taking_part(members)

    def is_paused(self, key: int) -> bool:
        """Whether a request is live and takes part in no step."""
        return key in self._paused

    def tokens_since(self, live: LiveSequence) -> int:
        """Return how many tokens a request has run since it got its slots."""
        return live.position - self._since[live.key]

    def set_leaving(self, leaving: Iterable[LiveSequence]) -> None:
        """Leave these requests, and no others but the paused ones, out of `runnable`."""
        self._leaving = {live.key for live in leaving}

    def release(self, live: Member) -> None:
        """Take the request of `live` out for good and free its slots."""
        self.suspend(live)
        for member in live.members:
            member.released = True

    def suspend(self, live: Member) -> None:
        """Take the request of `live` out and free its slots. It may be held again in others."""
        del self.live[live.key], self._since[live.key]
        self._paused.discard(live.key)
        self._leaving.discard(live.key)
        self._late.discard(live.key)
        client = live.request.client
        self.held[client] -= len(live.members)
        if self.held[client] == 0:
            del self.held[client]
        for member in live.members:
            del self._members[member.slot]
            member.close()
            self.give_back(member.slot)

    def _taking_part(self, members: list[Member]) -> list[Member]:
        if not self._paused and not self._leaving:
            return members
        return [one for one in members if one.key not in self._paused and one.key not in self._leaving]
