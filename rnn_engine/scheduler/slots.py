"""The slots: how requests get, hold and give them up. One is free even while its last run is in flight."""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TypeAlias

from rnn_engine.requests import Client, GenerateRequest
from rnn_engine.scheduler.drafts import DraftingSequence, Drafts
from rnn_engine.scheduler.mixed import MixedSequence
from rnn_engine.scheduler.prefixes import Prefixes, Start
from rnn_engine.scheduler.queue import Queue, Queued, Waiting
from rnn_engine.scheduler.sequence import SamplingSequence, Shared, SlotSequence
from rnn_engine.telemetry import SlotUse
from rnn_engine.types import LoraPairs, PendingState, Runner


class LoraPlaces:
    """Which LoRA, by its digest, is at which place of a runner. One that no running request uses may be replaced."""

    def __init__(self, runner: Runner) -> None:
        self.replace_runner(runner)

    def replace_runner(self, runner: Runner) -> None:
        """Use `runner`, at whose places there is no LoRA yet."""
        self._runner = runner
        self._places: dict[str, int] = {}  # the one that was used last comes last

    def has_room(self, digests: Collection[str]) -> bool:
        """Return True if there are places for these LoRAs together."""
        return len(digests) <= self._runner.lora_room.places

    def put(self, lora: LoraPairs, in_use: Collection[str]) -> int:
        """Return the place of `lora`, after writing it to one whose LoRA is not `in_use`; `has_room` must be true."""
        place = self._places.pop(lora.digest, None)
        if place is None:
            if len(self._places) == self._runner.lora_room.places:
                del self._places[next(digest for digest in self._places if digest not in in_use)]
            place = min(set(range(self._runner.lora_room.places)) - set(self._places.values()))
            self._runner.write_lora(place, lora)
        self._places[lora.digest] = place
        return place


class Slots:
    """Which slots are free, or held by sequences. One that is taken is given back, or held until its release."""

    def __init__(self, count: int) -> None:
        self.live: dict[int, SamplingSequence] = {}  # by request, oldest first; none that was released
        self._sequences: dict[int, SlotSequence] = {}  # by slot, oldest first: all of those requests
        self.held: Counter[Client] = Counter()  # slots; no client without any
        self.num_background = 0  # held slots of requests in the background
        self._paused: set[int] = set()  # keys of live ones that take part in no step
        self._leaving: set[int] = set()  # keys of those that will be suspended and take part in no further step
        self._late: set[int] = set()  # keys of those that await their masks
        self._since: dict[int, int] = {}  # by request: the position at which it got its slots
        self._free = list(range(count))  # a heap

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_advancing(self) -> int:
        """The number of slots held by requests that are neither paused nor waiting for their masks."""
        resting = self._paused | self._late if self._late else self._paused
        return len(self._sequences) - sum(len(self.live[key].sequences) for key in resting)

    @property
    def num_foreground(self) -> int:
        return len(self._sequences) - self.num_background

    @property
    def ready(self) -> list[SamplingSequence]:
        """The live requests that waited for the masks of their next tokens and can continue now."""
        return [self.live[key] for key in sorted(self._late) if self.live[key].can_go_on]

    def loras(self, leaving: Collection[SamplingSequence] = ()) -> set[str]:
        """Return the digests of the LoRAs of all live requests but those that are `leaving`."""
        return {digest for live in self.live.values() if live not in leaving for digest in live.request.loras}

    @property
    def lowest_free(self) -> int | None:
        return self._free[0] if self._free else None

    def take(self) -> int:
        return heapq.heappop(self._free)

    def give_back(self, slot: int) -> None:
        """Make a slot that was taken free again. No sequence may run in it."""
        heapq.heappush(self._free, slot)

    def hold(self, live: SamplingSequence) -> None:
        """Record that the sequences of a request, the first of which is `live`, hold the slots taken for them."""
        self.live[live.key] = live
        self._count(live.request.client, len(live.sequences))
        self._since[live.key] = live.position
        for sequence in live.sequences:
            self._sequences[sequence.slot] = sequence
        self.note_mask(live)

    def pause(self, key: int, paused: bool) -> None:
        """Exclude the request `key` from steps, or include it again if not `paused`. Does nothing if it is not live."""
        if paused and key in self.live:
            self._paused.add(key)
        else:
            self._paused.discard(key)

    def note_mask(self, live: SlotSequence) -> None:
        """Record whether a live request waits for its next token's mask."""
        if live.awaits_mask:
            self._late.add(live.key)
        else:
            self._late.discard(live.key)

    def runnable(self) -> list[SlotSequence]:
        """Return the sequences that can run in a step that is submitted now."""
        return self._taking_part([one for one in self._sequences.values() if one.phase.can_run(one)])

    def uses(self) -> list[SlotUse]:
        """Return a `SlotUse` for each held slot, the oldest request first. May be called on any thread."""
        return [one.use(paused=one.key in self._paused) for one in list(self._sequences.values())]

    def runnable_ahead(self) -> list[SlotSequence]:
        """Return what can run beside a step in flight; nothing if the host must first see one of its tokens."""
        runnable = []
        for one in self._sequences.values():
            if one.phase.can_run(one):
                runnable.append(one)
            elif one.phase.awaits_token(one):
                return []
        return self._taking_part(runnable)

    def is_paused(self, key: int) -> bool:
        return key in self._paused

    def tokens_since(self, live: SamplingSequence) -> int:
        """Return how many tokens a live request has run since it got the slots that it holds now."""
        return live.position - self._since[live.key]

    def set_leaving(self, leaving: Iterable[SamplingSequence]) -> None:
        """Set which requests will be suspended soon, so that they take part in no further step."""
        self._leaving = {live.key for live in leaving}

    def release(self, live: SlotSequence) -> None:
        """Remove a live request for good and free its slots. The outcome of its runs in flight is dropped."""
        self.suspend(live)
        for sequence in live.sequences:
            sequence.released = True

    def suspend(self, live: SlotSequence) -> None:
        """Free the slots of a live request, which is not live any more. It may get other slots later."""
        del self.live[live.key], self._since[live.key]
        self._paused.discard(live.key)
        self._leaving.discard(live.key)
        self._late.discard(live.key)
        self._count(live.request.client, -len(live.sequences))
        for sequence in live.sequences:
            del self._sequences[sequence.slot]
            sequence.close()
            self.give_back(sequence.slot)

    def _count(self, client: Client, num_slots: int) -> None:
        self.held[client] += num_slots
        if self.held[client] == 0:
            del self.held[client]
        if client.is_background:
            self.num_background += num_slots

    def _taking_part(self, runnable: list[SlotSequence]) -> list[SlotSequence]:
        if not self._paused and not self._leaving:
            return runnable
        return [one for one in runnable if one.key not in self._paused and one.key not in self._leaving]


# Suspension: a request gives up its slots before its end, so that other clients get their share, and resumes later.
#
# A state has a fixed size, so it is read from the device and later written into any slot, and nothing is run twice. The
# sequence object keeps its tokens and text, so it resumes exactly as if it had never been suspended.

LEAST_TOKENS = 64  # that a request of a client of weight 1 runs in its slots before it may be suspended


@dataclass(slots=True, eq=False)
class Suspended:
    """A request that has given up its slots before its end and waits for others. Implements `Queued`."""

    live: SamplingSequence
    states: Sequence[PendingState]  # of its sequences
    paused: bool  # its reader is far behind

    @property
    def key(self) -> int:
        return self.live.key

    @property
    def request(self) -> GenerateRequest:
        return self.live.request

    @property
    def num_slots(self) -> int:
        return len(self.live.sequences)

    @property
    def ready(self) -> bool:
        return not self.paused

    @property
    def has_states(self) -> bool:
        """True if all of the request's states were read to the host, so that it does not need the device any more."""
        return all(state.done() for state in self.states)

    def release(self) -> None:
        """Drop the states that the request has saved, because it leaves the queue."""
        self.states = ()


HasPlaces: TypeAlias = Callable[[Queued, Sequence[SamplingSequence]], bool]
"""Returns True if there are places for the LoRAs of a queued request once some live requests have left."""


def find_victims(queue: Queue, slots: Slots, least_tokens: int, has_places: HasPlaces) -> list[SamplingSequence]:
    """Return the live requests to suspend so that the queued requests that come next can start.

    A request in the background gives way at once to any that is not, and never the other way round. Of the same kind, a
    request gives way to one of another client if its own client will still hold at least as many slots for its weight.
    It must have run `least_tokens` times its client's weight since it got its slots, or its reader must be behind. If
    its client holds N slots more than the other, an Nth of these tokens is enough: a newcomer should not wait long for
    a client that holds all slots. The client that holds most for its weight loses first. Of its requests, paused ones
    go first, then the one that has run most tokens in its slots.
    """
    if len(queue) == 0:
        return []
    held, num_free = slots.held.copy(), slots.num_free
    if not _any_has_less(queue.clients, held):
        return []
    candidates = list(slots.live.values())
    victims: list[SamplingSequence] = []
    awaits_place = False
    for queued in queue.ready(held):
        if awaits_place and queued.request.loras:
            continue
        client, chosen = queued.request.client, list[SamplingSequence]()
        while num_free < queued.num_slots or not has_places(queued, [*victims, *chosen]):
            ranked = []  # those whose clients would still have no lower rank than `client`
            for live in candidates:
                owner = live.request.client
                times = max(held[owner] - held[client], 1)
                at_once = slots.is_paused(live.key) or owner.is_background != client.is_background
                if owner == client or not (at_once or times * slots.tokens_since(live) >= least_tokens * owner.weight):
                    continue
                if owner.rank(held[owner] - len(live.sequences)) >= client.rank(held[client]):
                    ranked.append((owner.rank(held[owner]), slots.is_paused(live.key), slots.tokens_since(live), live))
            if not ranked:
                break
            *_, victim = max(ranked, key=itemgetter(0, 1, 2))
            candidates.remove(victim)
            chosen.append(victim)
            held[victim.request.client] -= len(victim.sequences)
            num_free += len(victim.sequences)
        else:
            victims += chosen
            num_free -= queued.num_slots
            held[client] += queued.num_slots
            continue
        if num_free < queued.num_slots:  # no other passes it, as in `start_ready`
            break
        awaits_place = True
        for spared in chosen:  # others pass it, since only a place for its LoRA is missing
            candidates.append(spared)
            held[spared.request.client] += len(spared.sequences)
            num_free -= len(spared.sequences)
    return victims


def _any_has_less(clients: Sequence[Client], held: Counter[Client]) -> bool:
    """Return True if a client could give one of `clients` one of its `held` slots and keep no lower rank."""
    if not clients or not held or (len(held) == 1 and held.keys() >= set(clients)):
        return False
    least = min(client.rank(held[client]) for client in clients)
    return least <= max(client.rank(count - 1) for client, count in held.items())


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FailedStart:
    """The failure of a request that was taken from the queue and could not be started or resumed in its slots."""

    key: int
    error: Exception


class SlotAllocator:
    """Queues requests and gives them slots in order, suspending requests of clients that have too many."""

    def __init__(self, shared: Shared, slots: Slots, prefixes: Prefixes, drafts: Drafts, least_tokens: int) -> None:
        """Start with an empty queue. A client of weight 1 runs `least_tokens` before it may be suspended."""
        self._shared = shared
        self._slots = slots
        self._prefixes = prefixes
        self._drafts = drafts
        self._least_tokens = least_tokens
        self.queue = Queue()
        self.keeps_slot_free = False  # background requests that start leave one free, unless they hold none

    @property
    def can_start(self) -> bool:
        """True if a queued request could start now, perhaps after others are suspended."""
        if len(self.queue) == 0:
            return False
        return next(self._startable(), None) is not None or len(self.find_victims()) > 0

    def add(self, key: int, request: GenerateRequest, arrived: float) -> None:
        """Queue `request` under `key`; it arrived at the time `arrived` of the scheduler's clock."""
        members = [Waiting(key, one, self._prefixes.prefix(one)) for one in request.members]
        waiting = members[0]
        waiting.arrived = arrived
        waiting.others = tuple(members[1:])
        self._prefixes.hold_back(waiting)
        self.queue.add(waiting)

    def has_not_begun(self, key: int) -> bool:
        """Return True if the request `key` is queued and has had no slot yet."""
        return isinstance(self.queue.find(key), Waiting)

    def suspended(self, key: int) -> SamplingSequence | None:
        queued = self.queue.find(key)
        return queued.live if isinstance(queued, Suspended) else None

    @property
    def keys_on_device(self) -> list[int]:
        return [queued.key for queued in self.queue if isinstance(queued, Suspended) and not queued.has_states]

    def pause(self, key: int, paused: bool) -> None:
        """Keep the suspended request `key` from resuming, or let it if not `paused`. Does nothing for any other."""
        queued = self.queue.find(key)
        if isinstance(queued, Suspended):
            queued.paused = paused

    def find_victims(self) -> list[SamplingSequence]:
        """Return the live requests to suspend so that queued requests of other clients can start."""
        return find_victims(self.queue, self._slots, self._least_tokens, self._has_places)

    def suspend(self, live: SamplingSequence) -> None:
        """Start to read a request's states, free its slots and queue it again; none of its runs is in flight."""
        states = [self._shared.runner.start_read(sequence.slot) for sequence in live.sequences]
        paused = self._slots.is_paused(live.key)
        live.sampler.leave_device()
        self._slots.suspend(live)
        self.queue.add(Suspended(live, states, paused), has_begun=True)

    def start_ready(self) -> Iterator[SamplingSequence | FailedStart]:
        """Start queued requests and resume suspended ones, in order, as long as the next one has enough free slots.

        Yields the sequence of each request that starts, and a `FailedStart` for each that fails; nothing for those that
        resume. Slots may be given back meanwhile.
        """
        for queued in self._startable():
            if isinstance(queued, Suspended):
                self.queue.take(queued)
                failed = queued.live.context.run(self._resume, queued)
                if failed is not None:
                    yield failed
            elif isinstance(queued, Waiting) and not self._prefixes.hold_back(queued):
                self.queue.take(queued)
                yield queued.context.run(self._start, queued)

    def _startable(self) -> Iterator[Queued]:
        """Yield the queued requests that can start now, in order. The caller may start each before the next."""
        awaits_place = False
        for queued in self.queue.ready(self._slots.held) if self._slots.num_free else ():
            if queued.request.loras and (awaits_place or not self._has_places(queued)):
                awaits_place = True  # of its LoRA; only others without one pass it, so that a place gets free
            elif self._has_room(queued):
                yield queued
            else:
                return  # no other passes a request that needs several slots, so that it gets them

    def _has_room(self, queued: Queued) -> bool:
        """Return True if there are enough free slots for a request, and one more if it must leave one for another."""
        num_left = self._slots.num_free - queued.num_slots
        leaves_one = self.keeps_slot_free and queued.request.client.is_background and self._slots.num_background > 0
        return num_left >= int(leaves_one)

    def _has_places(self, queued: Queued, leaving: Sequence[SamplingSequence] = ()) -> bool:
        """Return True if the LoRAs of a request and those of live requests that are not `leaving` have places."""
        own = queued.request.loras
        return not own or self._shared.loras.has_room(own.keys() | self._slots.loras(leaving))

    def _put_loras(self, live: SamplingSequence) -> None:
        """Put the LoRAs of a request at places of the runner, and set for each sequence which place it has."""
        in_use = self._slots.loras() | live.request.loras.keys()
        for sequence in live.sequences:
            start = sequence.request.initial_state
            if start is not None and start.lora is not None:
                sequence.lora = self._shared.loras.put(start.lora, in_use)

    def _resume(self, suspended: Suspended) -> FailedStart | None:
        """Write a suspended request's states to free slots, so that it continues. Return the failure, or None."""
        live = suspended.live
        slots = [self._slots.take() for _ in live.sequences]
        try:
            for slot, state in zip(slots, suspended.states, strict=True):
                self._shared.runner.write_state(slot, state.result())
            self._put_loras(live)
        except Exception as error:
            logger.exception("a request that was suspended could not go on")
            for slot in slots:
                self._slots.give_back(slot)
            return FailedStart(live.key, error)
        live.move(slots)
        self._slots.hold(live)
        return None

    def _start(self, waiting: Waiting) -> SamplingSequence | FailedStart:
        slots = [self._slots.take() for _ in waiting.members]
        starts: list[Start] = []
        try:
            live = self._make_live(waiting, slots, starts)
        except Exception as error:
            logger.exception("a request could not start")
            for start in starts:
                start.plan.close()
            for slot in slots:
                self._slots.give_back(slot)
            return FailedStart(waiting.key, error)
        finally:
            waiting.release()
        self._slots.hold(live)
        for other in self.queue.ready() if any(start.plan.open for start in starts) else ():
            if isinstance(other, Waiting) and any(self._prefixes.concerns(start, other) for start in starts):
                self._prefixes.hold_back(other)
        return live

    def _make_live(self, waiting: Waiting, slots: Sequence[int], starts: list[Start]) -> SamplingSequence:
        """Write states to `slots`; return the first sequence, ready to run. Every start is added to `starts`."""
        meter = self._shared.meter
        started = meter.started(waiting.arrived)
        for member, slot in zip(waiting.members, slots, strict=True):
            starts.append(self._prefixes.begin(member, slot))
        drafter = self._drafts.drafter_of(waiting.request, self._prefixes.find_earlier)
        kind = SamplingSequence if waiting.request.mix is None else MixedSequence
        live = (kind if drafter is None else DraftingSequence)(
            waiting.key,
            waiting.request,
            slots[0],
            starts[0],
            waiting.context,
            self._shared,
            partial(meter.left_prompt, waiting.arrived, started, waiting.request),
        )
        if isinstance(live, DraftingSequence) and drafter is not None:
            live.drafter = drafter
        if isinstance(live, MixedSequence):
            for member, slot, start in zip(waiting.others, slots[1:], starts[1:], strict=True):
                live.join(member.request, slot, start)
        self._put_loras(live)
        return live
