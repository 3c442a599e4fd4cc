"""The way of a request from its arrival into its slots, with the state that its prompt starts from."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rnn_engine.requests import GenerateRequest
from rnn_engine.sampling import JointDraws
from rnn_engine.scheduler.drafting import DraftingSequence
from rnn_engine.scheduler.drafts import Drafts
from rnn_engine.scheduler.halts import Halts
from rnn_engine.scheduler.mask_threads import MaskThreads
from rnn_engine.scheduler.meter import Meter
from rnn_engine.scheduler.mixed import MixedSequence
from rnn_engine.scheduler.prefixes import Prefixes, Start
from rnn_engine.scheduler.queue import Queue, Waiting
from rnn_engine.scheduler.sequence import LiveSequence
from rnn_engine.scheduler.slots import Slots
from rnn_engine.scheduler.suspended import Suspended, find_victims
from rnn_engine.scheduler.text import TokenInfos
from rnn_engine.types import Runner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FailedStart:
    """A request that left the queue and could not be put into its slots."""

    key: int
    error: Exception


class Admission:
    """Keeps the requests that wait, and gives them slots in the queue's order.

    These are free ones, and those of clients that have more than their share.
    """

    def __init__(
        self,
        runner: Runner,
        infos: TokenInfos,
        slots: Slots,
        prefixes: Prefixes,
        draws: JointDraws,
        meter: Meter,
        drafts: Drafts,
        least_tokens: int,
        mask_threads: MaskThreads,
    ) -> None:
        """`least_tokens` are those that a request runs until it may be suspended, for a weight of 1."""
        self._runner = runner
        self._draws = draws
        self._infos = infos
        self._slots = slots
        self._prefixes = prefixes
        self._meter = meter
        self._drafts = drafts
        self._least_tokens = least_tokens
        self._mask_threads = mask_threads
        self._queue = Queue()
        self._halts = Halts(runner.shape.vocab_size, infos.data)

    @property
    def keys(self) -> list[int]:
        """Those that wait, in order of arrival."""
        return self._queue.keys

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def num_ready(self) -> int:
        """How many slots those would take that would start if there were slots for all."""
        return self._queue.num_ready

    @property
    def can_start(self) -> bool:
        """Whether `start_ready` would start any, if need be after others were suspended."""
        if len(self._queue) == 0:
            return False
        if self._slots.num_free > 0:
            queued = next(self._queue.ready(self._slots.held), None)
            if queued is not None and queued.num_slots <= self._slots.num_free:
                return True
        return len(self.find_victims()) > 0

    def replace_runner(self, runner: Runner) -> None:
        """Go on with another runner of the same model."""
        self._runner = runner

    def add(self, key: int, request: GenerateRequest, arrived: float) -> None:
        """Queue `request`, whose client asked at `arrived` by the scheduler's clock."""
        members = [Waiting(key, one, self._prefixes.prefix(one)) for one in request.members]
        waiting = members[0]
        waiting.arrived = arrived
        waiting.others = tuple(members[1:])
        self._prefixes.hold_back(waiting)
        self._queue.add(waiting)

    def discard(self, key: int) -> None:
        """Forget a request, if it waits."""
        self._queue.discard(key)

    def has_not_begun(self, key: int) -> bool:
        """Whether a request waits and has had no slot yet."""
        return isinstance(self._queue.find(key), Waiting)

    def suspended(self, key: int) -> LiveSequence | None:
        """Return a request that has had slots and waits to go on; None for another one."""
        queued = self._queue.find(key)
        return queued.live if isinstance(queued, Suspended) else None

    @property
    def keys_on_device(self) -> list[int]:
        """Those that are suspended, and whose states have not arrived on the host."""
        return [queued.key for queued in self._queue if isinstance(queued, Suspended) and not queued.has_states]

    def pause(self, key: int, paused: bool) -> None:
        """Let a suspended request wait, or go on where not `paused`. Does nothing for another one."""
        queued = self._queue.find(key)
        if isinstance(queued, Suspended):
            queued.paused = paused

    def find_victims(self) -> list[LiveSequence]:
        """Return the live requests that are to be suspended for others that wait."""
        return find_victims(self._queue, self._slots, self._least_tokens)

    def suspend(self, live: LiveSequence) -> None:
        """Free the slots of a request that no step in flight runs, and queue it to go on. Raises as the device does."""
        states = [self._runner.start_read(member.slot) for member in live.members]
        paused = self._slots.is_paused(live.key)
        self._draws.leave(live.sampler)
        self._slots.suspend(live)
        self._queue.add(Suspended(live, states, paused), has_begun=True)

    def start_ready(self) -> Iterator[LiveSequence | FailedStart]:
        """Start requests as long as there are slots for the next one, and let suspended ones go on.

        Yields those that begin, and those that fail. Slots may be given back meanwhile.
        """
        for queued in self._queue.ready(self._slots.held) if self._slots.num_free else ():
            if queued.num_slots > self._slots.num_free:
                break  # nobody passes one that needs several slots, so that it gets them
            if isinstance(queued, Suspended):
                self._queue.take(queued)
                failed = queued.live.context.run(self._resume, queued)
                if failed is not None:
                    yield failed
            elif isinstance(queued, Waiting) and not self._prefixes.hold_back(queued):
                self._queue.take(queued)
                yield queued.context.run(self._start, queued)

    def _resume(self, suspended: Suspended) -> FailedStart | None:
        """Put a suspended request into slots; return what has failed."""
        live = suspended.live
        slots = [self._slots.take() for _ in live.members]
        try:
            for slot, state in zip(slots, suspended.states, strict=True):
                self._runner.write_state(slot, state.result())
        except Exception as error:
            logger.exception("a request that was suspended could not go on")
            for slot in slots:
                self._slots.give_back(slot)
            return FailedStart(live.key, error)
        live.move(slots, self._runner.read_state, penalises_on_device=slots[0] < self._runner.num_penalty_slots)
        self._draws.join(slots[0], live.sampler)
        self._slots.hold(live)
        return None

    def _start(self, waiting: Waiting) -> LiveSequence | FailedStart:
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
        for other in self._queue.ready() if any(start.plan.open for start in starts) else ():
            if isinstance(other, Waiting) and any(self._prefixes.concerns(start, other) for start in starts):
                self._prefixes.hold_back(other)
        return live

    def _make_live(self, waiting: Waiting, slots: Sequence[int], starts: list[Start]) -> LiveSequence:
        """Put the states of a request into `slots`, and add to `starts` how far they have taken it."""
        started = self._meter.started(waiting.arrived)
        for member, slot in zip(waiting.members, slots, strict=True):
            starts.append(self._prefixes.begin(member, slot))
        drafter = self._drafts.drafter_of(waiting.request, self._prefixes.find_earlier)
        kind = LiveSequence if waiting.request.mix is None else MixedSequence
        live = (kind if drafter is None else DraftingSequence)(
            waiting.key,
            waiting.request,
            slots[0],
            starts[0],
            self._runner.shape.vocab_size,
            self._infos,
            self._runner.read_state,
            partial(self._meter.left_prompt, waiting.arrived, started, waiting.request.max_tokens),
            self._meter.read_whole_row,
            self._meter.counters,
            self._mask_threads,
            waiting.context,
            self._halts.of(waiting.request) if self._runner.max_draws else None,
            penalises_on_device=slots[0] < self._runner.num_penalty_slots,
            max_draw_logprobs=self._runner.max_draw_logprobs,
        )
        if isinstance(live, DraftingSequence) and drafter is not None:
            live.drafter = drafter
        self._draws.join(slots[0], live.sampler)
        if isinstance(live, MixedSequence):
            for member, slot, start in zip(waiting.others, slots[1:], starts[1:], strict=True):
                live.join(member.request, slot, start)
        return live
