"""The replicas that a server process (front) knows, called members, with their requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar

from rnn_engine.errors import EngineClosedError, NotFoundError, RnnEngineError, UnavailableError
from rnn_engine.fleet.replica import ReplicaEngine
from rnn_engine.fleet.routing import Candidate, PrefixRouter
from rnn_engine.fleet.wire import (
    RETRY_SECONDS,
    Links,
    Outcome,
    ReplicaLostError,
    Report,
    pack_question,
    unpack_answer,
    unpack_outcomes,
)
from rnn_engine.requests import Finished, GenerateRequest
from rnn_engine.scheduler import Inbox
from rnn_engine.telemetry import EngineCounters, Health, Histogram, SlotUse
from rnn_engine_states.cache.browse import CacheTree, TreeNode
from rnn_engine_states.cache.checkpoint import make_root, position_missing
from rnn_engine_states.cache.config import CacheStats
from rnn_engine_states.frozen import NO_INITIAL_STATE

T = TypeVar("T")

# What many replicas count and keep, as that of one engine: sums of counters, and joined lists of slots and caches.

_OF_REQUESTS = frozenset({"request_seconds", "prompt_tokens", "completion_tokens", "cached_tokens", "outcomes"})
"""The counters that a server process keeps by itself, since it also sees the requests that no replica ran."""


def total_counters(own: EngineCounters, replicas: Iterable[EngineCounters]) -> EngineCounters:
    """Return the sum of the replicas' counters, with the server process's `own` values for the counters of requests."""
    total = add_up([EngineCounters(), *replicas])
    for name in _OF_REQUESTS:
        setattr(total, name, getattr(own, name))
    return total


def add_up(counts: Sequence[T]) -> T:
    """Add up numbers, or the fields of objects. None counts nothing, flags are joined by or, tiers by name."""
    known: list[Any] = [each for each in counts if each is not None]
    first: Any = known[0] if known else None
    match first:
        case None | str():
            return first  # type: ignore[return-value]
        case bool():
            total: Any = any(known)
        case int() | float():
            total = sum(known)
        case dict():
            total = {key: add_up([each[key] for each in known]) for key in first}
        case tuple():
            names = dict.fromkeys(tier.tier for tiers in known for tier in tiers)
            total = tuple(add_up([tier for tiers in known for tier in tiers if tier.tier == name]) for name in names)
        case Histogram():
            total = Histogram(first.bounds)
            total.counts = [sum(counts) for counts in zip(*(each.counts for each in known), strict=True)]
            total.sum = sum(each.sum for each in known)
        case _:
            total = copy(first)
            for name in vars(first) if isinstance(first, EngineCounters) else [each.name for each in fields(first)]:
                setattr(total, name, add_up([getattr(each, name) for each in known]))
    return total  # type: ignore[no-any-return]


def all_slot_uses(reports: Iterable[Report]) -> list[SlotUse]:
    """Return the request in each occupied slot of all replicas, with numbers of slots and requests across all."""
    uses: list[SlotUse] = []
    first = 0
    reports = list(reports)
    for number, report in enumerate(reports):
        for use in report.slots:
            request = use.request * len(reports) + number
            uses.append(replace(use, slot=first + use.slot, request=request))
        first += report.info.num_slots
    return uses


def join_trees(replicas: Mapping[str, CacheTree], limit: int) -> CacheTree:
    """Join trees, by replica name, into one of at most `limit` prefixes, whose ids include the replica's name.

    If there are more, it has the first ones of each replica.
    """
    trees = replicas.values()
    is_cut = sum(len(tree.nodes) for tree in trees) > limit
    most = max(limit // len(trees), 1) if is_cut else limit
    nodes = [_named(name, node) for name, tree in replicas.items() for node in tree.nodes[:most]]
    truncated = is_cut or any(tree.truncated for tree in trees)
    return CacheTree(tuple(nodes[:limit]), sum(tree.num_positions for tree in trees), truncated)


def split_position(position: str) -> tuple[str, str]:
    """Split the id of a cached prompt prefix from `join_trees` into the replica's name and the id at that replica."""
    replica, _, own = position.rpartition("-")
    return replica, own


def _named(replica: str, node: TreeNode) -> TreeNode:
    parent = None if node.parent is None else f"{replica}-{node.parent}"
    return replace(node, position=replace(node.position, id=f"{replica}-{node.position.id}"), parent=parent)


# A server process's (front's) record of one replica: the requests that it runs for the front, and their events.

_log = logging.getLogger(__name__)

P = ParamSpec("P")

Method: TypeAlias = Callable[Concatenate[ReplicaEngine, P], Awaitable[T] | None]
"""A method of `ReplicaEngine`, which a replica calls on its engine."""


class EndedError(RnnEngineError):
    """Raised if a replica ends a request's stream of events without a last event or an error."""


class Member:
    """A replica as a front sees it: its latest report, and the front's requests there. For one event loop."""

    def __init__(self, links: Links, front: str, report: Report) -> None:
        self.name = report.name
        self.report = report  # the latest
        self.leaving = False  # no survey lists it any more; it gets no new requests
        self.lost = False  # it can't be reached any more
        self.ready = asyncio.Event()  # its stream has begun, or is lost
        self.links = links
        self.front = front
        self.requests: dict[int, RemoteRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stream = asyncio.create_task(self._read_stream())

    @property
    def takes_requests(self) -> bool:
        return self.ready.is_set() and not self.leaving and not self.lost and self.report.health.status == "ok"

    @property
    def outstanding(self) -> int:
        return len(self.requests)

    def note(self, report: Report | None) -> None:
        """Record the replica's latest report, or None if it is no longer among the replicas that take requests."""
        self.leaving = report is None
        self.report = report or self.report

    def fail(self, error: RnnEngineError) -> None:
        """End all requests of this server process at the replica with `error`."""
        for request in self.requests.values():
            request.put(error)

    def cancel(self) -> None:
        """Cancel the stream of events and the requests there; `ended` waits for their end."""
        self._stream.cancel()
        for task in self._tasks:
            task.cancel()

    async def ended(self) -> None:
        """Wait until the tasks that `cancel` has cancelled have ended."""
        await asyncio.wait((self._stream, *self._tasks))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a call to the replica, which `cancel` cancels."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _read_stream(self) -> None:
        reason = "its stream has ended"
        try:
            async with aclosing(self.links.parcels(self.name, self.front)) as parcels:
                async for data in parcels:
                    for key, outcome in unpack_outcomes(data):
                        request = self.requests.get(key)
                        if request is not None:  # else its reader has left
                            request.put(outcome)
                    self.ready.set()
        except Exception as error:
            reason = str(error) or type(error).__name__
            _log.warning("the stream of the replica %s broke off: %s", self.name, reason)
        finally:
            self.lost = True
            self.ready.set()
            self.fail(ReplicaLostError(self.name, reason))


class RemoteRequest:
    """A request at a replica, as a context manager and no generator: a loop that shuts down closes those at once."""

    def __init__(self, member: Member, key: int, call: bytes) -> None:
        """Prepare the packed request `call`, which `key` identifies to the replica."""
        self._key = key
        self._call = call
        self._member = member
        self.inbox = Inbox(self._hold)  # its reader gets the events, and the error that ends the request or EndedError
        self._ended = False

    def put(self, outcome: Outcome) -> None:
        """Queue an event, or the error that ends the request, for its reader. Ignored after the request's end."""
        if self._ended:
            return
        if outcome is None:
            outcome = EndedError()
        self._ended = isinstance(outcome, (Finished, RnnEngineError))
        self.inbox.put(outcome)

    def __enter__(self) -> Self:
        member = self._member
        member.requests[self._key] = self
        if member.lost:
            self.put(ReplicaLostError(member.name, "its stream has ended"))
        self._running = member.spawn(self._run())
        return self

    def __exit__(self, *_: object) -> None:
        del self._member.requests[self._key]  # nobody reads its events any more
        if not self._ended:
            self._running.cancel()

    def _hold(self, held: bool) -> None:
        """Ask the replica to stop sending the request's events, or, if `held` is False, to resume."""
        member = self._member
        member.spawn(member.links.hold(member.name, member.front, self._key, held))

    async def _run(self) -> None:
        """Have the replica run the request, and wait until it has ended. Its events arrive in the replica's stream.

        If the call itself fails, the request ends with an error here.
        """
        member = self._member
        try:
            await member.links.run(member.name, member.front, self._key, self._call)
        except ReplicaLostError as error:
            member.lost = True
            self.put(error)
        except Exception as error:
            _log.exception("a request failed at the replica %s", member.name)
            self.put(RnnEngineError(f"{type(error).__name__}: {error}"))


SURVEY_SECONDS = 0.5  # between two surveys of the replicas
_MOST_GONE = 64  # replicas that are gone and would be recognised if they came back


@dataclass(slots=True)
class _Counts:
    """The counters of a replica's engine and state cache since its start, or the sum of several replicas' counters."""

    engine: EngineCounters
    cache: CacheStats | None  # without sizes

    @classmethod
    def of(cls, report: Report) -> _Counts:
        return cls(report.counters, None if report.cache is None else report.cache.without_sizes())


class Members:
    """All replicas as one front sees them, and the choice of one for each request. For one event loop."""

    def __init__(self, links: Links, front: str, router: PrefixRouter) -> None:
        """Create an empty fleet; `survey` adds its replicas. `front` is the id of this server process."""
        self._links = links
        self._front = front
        self._router = router
        self._members: dict[str, Member] = {}
        self._gone: dict[str, _Counts] = {}  # what replicas that are gone had counted, by name
        self._long_gone = _Counts(EngineCounters(), None)  # the sum for those that went before
        self.closing = False  # True: no replica is chosen or asked any more

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    @property
    def takers(self) -> list[Member]:
        return [member for member in self if member.takes_requests]

    @property
    def reports(self) -> list[Report]:
        return [member.report for member in self if not member.lost]

    def counters(self, own: EngineCounters) -> EngineCounters:
        """Return the sum of all replicas' counters, including those that are gone, and of this process's `own`."""
        gone = (counts.engine for counts in (self._long_gone, *self._gone.values()))
        return total_counters(own, (*gone, *(member.report.counters for member in self)))

    def cache_stats(self) -> CacheStats | None:
        """Return the summed sizes and counters of all caches since the fleet's start; None if there are none."""
        lost = (_Counts.of(member.report) for member in self if member.lost)
        gone = (counts.cache for counts in (*lost, self._long_gone, *self._gone.values()))
        return add_up([*(report.cache for report in self.reports), *gone])

    def health(self) -> Health:
        """Return ok if any replica takes requests, else the health of one that is not ok. Serve restarts those."""
        if self.closing:
            return Health("closing", "the engine is stopping")
        if self.takers:
            return Health()
        unwell = (member.report.health for member in self if not (member.lost or member.leaving))
        nothing = Health("recovering", "no replica is running", retry_after=RETRY_SECONDS)
        return next((health for health in unwell if health.status != "ok"), nothing)

    def refuse_if_unable(self) -> None:
        """Raise EngineClosedError if the fleet is closing, or UnavailableError if its health allows no requests."""
        if self.closing:
            raise EngineClosedError
        self.health().check()

    def choose(self, request: GenerateRequest) -> Member:
        """Return the replica to run `request` on. Raises UnavailableError if no replica takes requests."""
        self.refuse_if_unable()
        candidates = [Candidate(one.name, one.report.info.num_slots, one.outstanding) for one in self.takers]
        if not candidates:
            raise UnavailableError("no replica accepts requests at this moment", RETRY_SECONDS)
        state = NO_INITIAL_STATE if request.initial_state is None else request.initial_state.root
        found = self._router.choose(candidates, make_root(state, request.cache_scope), request.prompt)
        return self._members[found.name]

    async def ask(self, position: str, method: Method[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Call a method of the engine that has `position`, an id from `join_trees`. Raises NotFoundError."""
        replica, _ = split_position(position)
        if replica not in self._members:
            raise position_missing(position)
        try:
            return await self._ask(replica, method, *args, **named)
        except NotFoundError:
            raise position_missing(position) from None

    async def ask_any(self, method: Method[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Call a method of the engine that has the fewest requests. Raises ReplicaLostError if its replica is gone."""
        self.refuse_if_unable()
        member = min(self.takers, key=lambda member: member.outstanding)
        return await self._ask(member.name, method, *args, **named)

    async def ask_all(self, method: Method[P, T], *args: P.args, **named: P.kwargs) -> dict[str, T]:
        """Call a method of all engines; return the results by the replicas' names.

        A replica that is lost or does not answer is left out, and logged. Raises the error of one that fails.
        """
        self.refuse_if_unable()
        names = [member.name for member in self if not member.lost]
        asking = (self._ask(name, method, *args, **named) for name in names)
        answers: dict[str, T] = {}
        for name, answer in zip(names, await asyncio.gather(*asking, return_exceptions=True), strict=True):
            if isinstance(answer, ReplicaLostError):
                _log.warning("%s is left out of %s: %s", name, method.__name__, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answers[name] = answer
        return answers

    async def _ask(self, replica: str, method: Method[P, T], *args: P.args, **named: P.kwargs) -> T:
        answer: T = unpack_answer(await self._links.ask(replica, pack_question(method.__name__, *args, **named)))
        return answer

    async def survey(self) -> None:
        """Get a report from each replica, and update the known replicas. Raises what `Links.survey` raises."""
        found = await self._links.survey(self._router.versions())
        if found is None:  # a replica that hangs must not make the others count as gone
            return
        reports = {report.name: report for report in found}
        for report in reports.values():
            if report.changes is not None:
                self._router.note(report.name, report.changes)
        new = [
            Member(self._links, self._front, report) for name, report in reports.items() if name not in self._members
        ]
        for member in new:
            self._members[member.name] = member
            self._gone.pop(member.name, None)  # it is back, and its counters include what it counted before
        gone = self._note(reports)
        for member in gone:
            member.cancel()  # at once, since the rest of a survey may be cancelled
        await asyncio.gather(*(member.ended() for member in gone))
        for member in new:
            with suppress(TimeoutError):  # the next survey follows soon
                await asyncio.wait_for(member.ready.wait(), SURVEY_SECONDS)

    async def close(self) -> None:
        """End the requests at all replicas with EngineClosedError, and cancel the streams of their events."""
        for member in self:
            member.fail(EngineClosedError())
        await asyncio.sleep(0)  # the readers of these requests leave
        for member in self:
            member.cancel()
        await asyncio.gather(*(member.ended() for member in self))

    def _note(self, reports: Mapping[str, Report]) -> list[Member]:
        """Update the known replicas from `reports`, by name; remove and return those that are gone and idle."""
        gone: list[Member] = []
        for name, member in list(self._members.items()):
            member.note(reports.get(name))
            if (member.leaving or member.lost) and member.outstanding == 0:
                del self._members[name]
                self._router.forget(name)
                self._gone[name] = _Counts.of(member.report)
                gone.append(member)
        while len(self._gone) > _MOST_GONE:
            self._long_gone = add_up([self._long_gone, self._gone.pop(next(iter(self._gone)))])
        return gone
