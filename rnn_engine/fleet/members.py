"""The replicas that one front knows: which there are, how they are, which takes a request, and what they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from rnn_engine.errors import EngineClosedError, NotFoundError, UnavailableError
from rnn_engine.fleet.errors import RETRY_SECONDS
from rnn_engine.fleet.links import Links
from rnn_engine.fleet.member import Member
from rnn_engine.fleet.routing import Candidate, PrefixRouter
from rnn_engine.fleet.totals import total_counters
from rnn_engine.fleet.trees import split_position
from rnn_engine.fleet.wire import Report, unpack_answer
from rnn_engine.health import Health
from rnn_engine.requests import GenerateRequest
from rnn_engine.telemetry import EngineCounters
from states.cache.checkpoint import position_missing
from states.cache.roots import make_root
from states.frozen import NO_INITIAL_STATE

SURVEY_SECONDS = 0.5  # between two looks at the replicas


class Members:
    """The members of a fleet, by their names. For one event loop."""

    def __init__(self, links: Links, front: str, router: PrefixRouter) -> None:
        """Nobody is known before `survey`. `front` is the id of whoever asks; `links` is closed with this."""
        self._links = links
        self._front = front
        self._router = router
        self._members: dict[str, Member] = {}
        self._gone = EngineCounters()  # what replicas have counted that are no more
        self.closing = False  # whether nobody is chosen or asked any more

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    @property
    def takers(self) -> list[Member]:
        """Those that take requests."""
        return [member for member in self if member.takes_requests]

    @property
    def reports(self) -> list[Report]:
        """What those that can be reached have told of themselves."""
        return [member.report for member in self if not member.lost]

    def counters(self, own: EngineCounters) -> EngineCounters:
        """Return what all replicas have counted, also those that are no more, with what the front counts itself."""
        return total_counters(own, (self._gone, *(report.counters for report in self.reports)))

    def health(self) -> Health:
        """Return that of the replica that is best off: the others are started anew by Serve."""
        if self.closing:
            return Health("closing", "the engine is stopping")
        if self.takers:
            return Health()
        unwell = (member.report.health for member in self if not (member.lost or member.leaving))
        nothing = Health("recovering", "no replica is running", retry_after=RETRY_SECONDS)
        return next((health for health in unwell if health.status != "ok"), nothing)

    def refuse_if_unable(self) -> None:
        """Raise UnavailableError or EngineClosedError where no replica takes requests."""
        if self.closing:
            raise _stopped()
        self.health().check()

    def choose(self, request: GenerateRequest) -> Member:
        """Return the replica that runs a request. Raises UnavailableError where none takes any."""
        self.refuse_if_unable()
        candidates = [Candidate(one.name, one.report.info.num_slots, one.outstanding) for one in self.takers]
        if not candidates:
            raise UnavailableError("no replica takes requests at this moment", RETRY_SECONDS)
        state = NO_INITIAL_STATE if request.initial_state is None else request.initial_state.root
        found = self._router.choose(candidates, make_root(state, request.cache_scope), request.prompt)
        return self._members[found.name]

    async def ask(self, position: str, question: bytes) -> Any:  # noqa: ANN401 - the question says which type
        """Ask a kept position's replica. Raises NotFoundError where it is not known."""
        replica, _ = split_position(position)
        if replica not in self._members:
            raise position_missing(position)
        try:
            return unpack_answer(await self._links.ask(replica, question))
        except NotFoundError:
            raise position_missing(position) from None

    async def ask_all(self, question: bytes) -> dict[str, Any]:
        """Return what each replica answers; one that is lost meanwhile is left out."""
        self.refuse_if_unable()
        names = [member.name for member in self if not member.lost]
        answers = await asyncio.gather(*(self._links.ask(name, question) for name in names), return_exceptions=True)
        return {
            name: unpack_answer(answer)
            for name, answer in zip(names, answers, strict=True)
            if not isinstance(answer, BaseException)
        }

    async def survey(self) -> None:
        """Look which replicas there are, and how they are. Raises what `Links.survey` raises."""
        found = await self._links.survey(self._router.versions())
        if found is None:  # one that hangs must not have the others count as gone
            return
        reports = {report.name: report for report in found}
        for report in reports.values():
            if report.changes is not None:
                self._router.note(report.name, report.changes)
        new = [
            Member(self._links, self._front, report) for name, report in reports.items() if name not in self._members
        ]
        self._members |= {member.name: member for member in new}
        gone = self._note(reports)
        await asyncio.gather(*(member.close() for member in gone))
        for member in new:
            with suppress(TimeoutError):  # another survey is soon
                await asyncio.wait_for(member.ready.wait(), SURVEY_SECONDS)

    async def close(self) -> None:
        """End what runs at replicas with EngineClosedError, and let go of them."""
        for member in self:
            member.fail(_stopped())
        await asyncio.sleep(0)  # those who wait for them leave
        await asyncio.gather(*(member.close() for member in self))
        await self._links.close()

    def _note(self, reports: Mapping[str, Report]) -> list[Member]:
        """Take what replicas tell of themselves; forget and return those that are gone and run nothing any more."""
        gone: list[Member] = []
        for name, member in list(self._members.items()):
            member.note(reports.get(name))
            if (member.leaving or member.lost) and member.outstanding == 0:
                del self._members[name]
                self._router.forget(name)
                self._gone = total_counters(EngineCounters(), (self._gone, member.report.counters))
                gone.append(member)
        return gone


def _stopped() -> EngineClosedError:
    return EngineClosedError("the engine has stopped")
