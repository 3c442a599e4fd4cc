"""The replicas that a server process (front) knows, called members, with their requests; and sums over all replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from rnn_engine.errors import EngineClosedError, NotFoundError, RnnEngineError, UnavailableError
from rnn_engine.fleet.routing import Candidate, PrefixRouter
from rnn_engine.fleet.wire import (
    RETRY_SECONDS,
    Links,
    Outcome,
    ReplicaLostError,
    Report,
    unpack_answer,
    unpack_outcomes,
    unpack_question,
)
from rnn_engine.requests import Event, Finished, GenerateRequest
from rnn_engine.scheduler import Inbox
from rnn_engine.telemetry import EngineCounters, Health, Histogram, SlotUse
from rnn_engine_states.cache.browse import CacheTree, SnapshotNode, TreeNode
from rnn_engine_states.cache.checkpoint import make_root, position_missing
from rnn_engine_states.cache.config import CacheStats, TierStats
from rnn_engine_states.frozen import NO_INITIAL_STATE
from rnn_engine_states.shared.config import StoreCounters

# A server process's (front's) record of one replica: the requests that it runs for the front, and their events.

_log = logging.getLogger(__name__)


class EndedError(RnnEngineError):
    """Raised if a replica ends a request's stream of events without a last event or an error."""


class Member:
    """A replica as a server process (front) sees it: its latest report, and the requests that it runs for the process.

    For one event loop.
    """

    def __init__(self, links: Links, front: str, report: Report) -> None:
        self.name = report.name
        self.report = report  # the latest
        self.leaving = False  # no survey lists it any more; it gets no new requests
        self.lost = False  # it can't be reached any more
        self.ready = asyncio.Event()  # its stream has begun, or is lost
        self._links = links
        self._front = front
        self._requests: dict[int, RemoteRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stream = asyncio.create_task(self._read_stream())

    @property
    def takes_requests(self) -> bool:
        """True if new requests may be sent to the replica."""
        return self.ready.is_set() and not self.leaving and not self.lost and self.report.health.status == "ok"

    @property
    def outstanding(self) -> int:
        """The number of this server process's requests that the replica has not finished."""
        return len(self._requests)

    def note(self, report: Report | None) -> None:
        """Record the replica's latest report, or None if it is no longer among the replicas that take requests."""
        self.leaving = report is None
        self.report = report or self.report

    def request(self, key: int, call: bytes) -> RemoteRequest:
        """Return a context manager that runs a request at the replica while its `with` block runs.

        `key` identifies the request to the replica, and `call` is the packed request.
        """
        return RemoteRequest(self, key, call)

    def enter(self, request: RemoteRequest) -> asyncio.Task[None]:
        """Send a request to the replica; return the task that waits for its end. Called by `RemoteRequest`."""
        self._requests[request.key] = request
        if self.lost:
            request.put(self._lost_error("its stream has ended"))
        return self._spawn(self._run(request))

    def leave(self, request: RemoteRequest) -> None:
        """Ignore all further events of a request, since nobody reads them any more. Called by `RemoteRequest`."""
        del self._requests[request.key]

    def hold(self, key: int, held: bool) -> None:
        """Ask the replica to stop sending the events of the request `key`, or, if `held` is False, to resume.

        Called by `RemoteRequest`.
        """
        self._spawn(self._links.hold(self.name, self._front, key, held))

    def fail(self, error: RnnEngineError) -> None:
        """End all requests of this server process at the replica with `error`."""
        for request in self._requests.values():
            request.put(error)

    def cancel(self) -> None:
        """Cancel the stream of events from the replica, and the tasks that run requests there.

        `ended` waits for their end.
        """
        self._stream.cancel()
        for task in self._tasks:
            task.cancel()

    async def ended(self) -> None:
        """Wait until the tasks that `cancel` has cancelled have ended."""
        await asyncio.wait((self._stream, *self._tasks))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, request: RemoteRequest) -> None:
        """Have the replica run a request, and wait until it has ended. Its events arrive in the replica's stream.

        If the call itself fails, the request ends with an error here.
        """
        try:
            await self._links.run(self.name, self._front, request.key, request.call)
        except ReplicaLostError as error:
            self.lost = True
            request.put(error)
        except Exception as error:
            _log.exception("a request failed at the replica %s", self.name)
            request.put(RnnEngineError(f"{type(error).__name__}: {error}"))

    async def _read_stream(self) -> None:
        reason = "its stream has ended"
        try:
            async with aclosing(self._links.parcels(self.name, self._front)) as parcels:
                async for data in parcels:
                    for key, outcome in unpack_outcomes(data):
                        request = self._requests.get(key)
                        if request is not None:  # else its reader has left
                            request.put(outcome)
                    self.ready.set()
        except Exception as error:
            reason = str(error) or type(error).__name__
            _log.warning("the stream of the replica %s broke off: %s", self.name, reason)
        finally:
            self.lost = True
            self.ready.set()
            self.fail(self._lost_error(reason))

    def _lost_error(self, reason: str) -> ReplicaLostError:
        return ReplicaLostError(self.name, reason)


class RemoteRequest:
    """A context manager around a request that a replica runs; leaving the `with` block early cancels the request.

    Not a generator: an event loop that shuts down closes all generators at once.
    """

    def __init__(self, member: Member, key: int, call: bytes) -> None:
        self.key = key
        self.call = call
        self._member = member
        self._inbox = Inbox(partial(member.hold, key))
        self._ended = False

    def put(self, outcome: Outcome) -> None:
        """Queue an event, or the error that ends the request, for its reader. Ignored after the request's end."""
        if self._ended:
            return
        if outcome is None:
            outcome = EndedError()
        self._ended = isinstance(outcome, (Finished, RnnEngineError))
        self._inbox.put(outcome)

    async def get(self) -> Event:
        """Wait for the request's next event and return it. Raises the error that ends the request, or EndedError."""
        return await self._inbox.get()

    @property
    def num_tokens(self) -> int:
        """The number of the request's generated tokens that have been received from the replica."""
        return self._inbox.num_tokens

    def __enter__(self) -> Self:
        self._run = self._member.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._member.leave(self)
        if not self._ended:
            self._run.cancel()


SURVEY_SECONDS = 0.5  # between two surveys of the replicas
_MOST_GONE = 64  # replicas that are gone and would be recognised if they came back


@dataclass(frozen=True, slots=True)
class _Counts:
    """The counters of a replica's engine and state cache since its start, or the sum of several replicas' counters."""

    engine: EngineCounters
    cache: CacheStats | None  # without sizes

    @classmethod
    def of(cls, report: Report) -> _Counts:
        return cls(report.counters, None if report.cache is None else report.cache.without_sizes())

    def plus(self, other: _Counts) -> _Counts:
        """Add the counters of `other` to these counters, and return the sum."""
        caches = [cache for cache in (self.cache, other.cache) if cache is not None]
        return _Counts(total_counters(EngineCounters(), (self.engine, other.engine)), total_cache_stats(caches))


class Members:
    """All replicas of a fleet, as one server process sees them: gets their reports, and chooses one for each request.

    For one event loop.
    """

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
        """The replicas that take new requests."""
        return [member for member in self if member.takes_requests]

    @property
    def reports(self) -> list[Report]:
        """The latest report of each replica that can be reached."""
        return [member.report for member in self if not member.lost]

    def counters(self, own: EngineCounters) -> EngineCounters:
        """Return the sum of all replicas' counters, including those that are gone, and of this process's `own`."""
        gone = (counts.engine for counts in (self._long_gone, *self._gone.values()))
        return total_counters(own, (*gone, *(member.report.counters for member in self)))

    def cache_stats(self) -> CacheStats | None:
        """Return the summed sizes of all replicas' state caches, and their summed counters since the fleet's start.

        These include the counters of replicas that are gone. None if there are no caches.
        """
        lost = (_Counts.of(member.report) for member in self if member.lost)
        gone = (counts.cache for counts in (*lost, self._long_gone, *self._gone.values()))
        caches = (*(report.cache for report in self.reports), *gone)
        return total_cache_stats([cache for cache in caches if cache is not None])

    def health(self) -> Health:
        """Return the fleet's health: ok if any replica takes requests, else the health of one that is not ok.

        Serve restarts the replicas that fail.
        """
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
            raise _stopped()
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

    async def ask(self, position: str, question: bytes) -> Any:  # noqa: ANN401 - the question says which type
        """Send a pickled question about the cached prompt prefix `position` to its replica, and return the answer.

        `position` is an id from `join_trees`.

        Raises NotFoundError for an unknown position.
        """
        replica, _ = split_position(position)
        if replica not in self._members:
            raise position_missing(position)
        try:
            return unpack_answer(await self._links.ask(replica, question))
        except NotFoundError:
            raise position_missing(position) from None

    async def ask_any(self, question: bytes) -> Any:  # noqa: ANN401 - the question says which type
        """Send a pickled question to the replica with the fewest requests, and return the answer.

        Raises ReplicaLostError if that replica is gone.
        """
        self.refuse_if_unable()
        member = min(self.takers, key=lambda member: member.outstanding)
        return unpack_answer(await self._links.ask(member.name, question))

    async def ask_all(self, question: bytes) -> dict[str, Any]:
        """Send a pickled question about the state cache to all replicas; return their answers by the replicas' names.

        A replica that is lost or does not answer is left out, and logged. Raises the error of one that fails.
        """
        self.refuse_if_unable()
        names = [member.name for member in self if not member.lost]
        found = await asyncio.gather(*(self._links.ask(name, question) for name in names), return_exceptions=True)
        answers: dict[str, Any] = {}
        for name, answer in zip(names, found, strict=True):
            if isinstance(answer, ReplicaLostError):
                _log.warning("%s is left out of %s: %s", name, unpack_question(question)[0], answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answers[name] = unpack_answer(answer)
        return answers

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
            member.fail(_stopped())
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
            self._long_gone = self._long_gone.plus(self._gone.pop(next(iter(self._gone))))
        return gone


def _stopped() -> EngineClosedError:
    return EngineClosedError("the engine has stopped")


_OF_REQUESTS = frozenset({"request_seconds", "prompt_tokens", "completion_tokens", "cached_tokens", "outcomes"})
"""The counters that a server process keeps by itself, since it also sees the requests that no replica ran."""


def total_counters(own: EngineCounters, replicas: Iterable[EngineCounters]) -> EngineCounters:
    """Return the sum of the replicas' counters, with the server process's `own` values for the counters of requests.

    The server process counts requests itself, since it also sees those that no replica ran.
    """
    total = EngineCounters()
    for name in _OF_REQUESTS:
        setattr(total, name, getattr(own, name))
    for counters in replicas:
        for name, value in vars(counters).items():
            if name in _OF_REQUESTS:
                continue
            if isinstance(value, Histogram):
                _add(getattr(total, name), value)
            else:
                setattr(total, name, getattr(total, name) + value)
    return total


def total_cache_stats(replicas: Sequence[CacheStats]) -> CacheStats | None:
    """Return the sum of the counters and sizes of several replicas' state caches, or None if `replicas` is empty."""
    if not replicas:
        return None
    tiers: dict[str, TierStats] = {}
    total = CacheStats(())
    for stats in replicas:
        for tier in stats.tiers:
            _add_fields(tiers.setdefault(tier.tier, TierStats(tier.tier, 0)), tier)
        _add_fields(total, stats)
        for reason, count in stats.misses.items():
            total.misses[reason] += count
    total.tiers = tuple(tiers.values())
    total.store = total_store_counters(stats.store for stats in replicas)
    return total


def total_store_counters(clients: Iterable[StoreCounters | None]) -> StoreCounters | None:
    """Return the sum of the counters of several clients of a store for shared states; None if all are None."""
    known = [counters for counters in clients if counters is not None]
    if not known:
        return None
    total = StoreCounters()
    for counters in known:
        for outcome, count in counters.outcomes.items():
            total.outcomes[outcome] += count
        total.read_bytes += counters.read_bytes
        total.written_bytes += counters.written_bytes
        total.seconds += counters.seconds
        total.circuit_open |= counters.circuit_open
        total.circuit_openings += counters.circuit_openings
        total.unreadable += counters.unreadable
    return total


def all_slot_uses(reports: Iterable[Report]) -> list[SlotUse]:
    """Return the request in each occupied slot of all replicas, by replica, each replica's oldest request first.

    Slots are numbered across all replicas, and requests too, so that no two have the same number.
    """
    uses: list[SlotUse] = []
    first = 0
    reports = list(reports)
    for number, report in enumerate(reports):
        for use in report.slots:
            request = use.request * len(reports) + number
            uses.append(replace(use, slot=first + use.slot, request=request))
        first += report.info.num_slots
    return uses


def _add(total: Histogram, more: Histogram) -> None:
    total.counts = [count + other for count, other in zip(total.counts, more.counts, strict=True)]
    total.sum += more.sum


def _add_fields(total: CacheStats | TierStats, more: CacheStats | TierStats) -> None:
    for field in fields(total):
        value = getattr(more, field.name)
        if isinstance(value, int):
            setattr(total, field.name, getattr(total, field.name) + value)


def join_nodes(replicas: Mapping[str, tuple[SnapshotNode, ...]], limit: int) -> tuple[SnapshotNode, ...]:
    """Join snapshots of the replicas' state caches, by replica name, into one of at most `limit` prompt prefixes.

    If there are more, only the first of each replica are returned.
    """
    most = max(limit // max(len(replicas), 1), 1)
    joined: list[SnapshotNode] = []
    for nodes in replicas.values():
        first = len(joined)
        kept = nodes if sum(map(len, replicas.values())) <= limit else nodes[:most]
        joined += (node if node.parent is None else replace(node, parent=first + node.parent) for node in kept)
    return tuple(joined[:limit])


def join_trees(replicas: Mapping[str, CacheTree], limit: int) -> CacheTree:
    """Join trees of the replicas' cached prompt prefixes, by replica name, into one tree of at most `limit` prefixes.

    The id of each position includes its replica's name.
    """
    nodes = [_named(name, node) for name, tree in replicas.items() for node in tree.nodes]
    return CacheTree(
        tuple(nodes[:limit]),
        sum(tree.num_positions for tree in replicas.values()),
        len(nodes) > limit or any(tree.truncated for tree in replicas.values()),
    )


def split_position(position: str) -> tuple[str, str]:
    """Split the id of a cached prompt prefix from `join_trees` into the replica's name and the id at that replica."""
    replica, _, own = position.rpartition("-")
    return replica, own


def _named(replica: str, node: TreeNode) -> TreeNode:
    parent = None if node.parent is None else f"{replica}-{node.parent}"
    return replace(node, position=replace(node.position, id=f"{replica}-{node.position.id}"), parent=parent)
