"""Continuous batching: the scheduler, which lets requests join and leave the slots of one runner at every step."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rnn_engine.errors import InvalidRequestError, MaskError, RnnEngineError, StepError
from rnn_engine.requests import Event, Finished, GenerateRequest, LatestClients
from rnn_engine.sampling.ranking import LogitRow, RowSource, RunRows
from rnn_engine.scheduler.checkpoints import CheckpointPoint
from rnn_engine.scheduler.drafts import NO_DRAFTS, Drafts, DraftSettings, awaits_draft, choose_drafts
from rnn_engine.scheduler.inboxes import Delivery, step_error
from rnn_engine.scheduler.mask_threads import WAIT_SECONDS, MaskThreads
from rnn_engine.scheduler.meter import DRAW_SECONDS, QUIET_SECONDS, Meter, StepSeconds, StepTimes, TimeShares
from rnn_engine.scheduler.phases import Prompt
from rnn_engine.scheduler.prefixes import Prefixes
from rnn_engine.scheduler.queue import TokenDemand, allocate_tokens, count_rows
from rnn_engine.scheduler.sequence import SamplingSequence, Shared, SlotSequence
from rnn_engine.scheduler.slots import LEAST_TOKENS, FailedStart, LoraPlaces, SlotAllocator, Slots
from rnn_engine.scheduler.text import Halts, TokenInfos
from rnn_engine.types import F32, MOST_DRAWS, NOTHING_DRAWN, Drawn, Readout, Runner, Ticket, TokenRun, run_step
from rnn_engine_states.cache.cache import StateCache

# Processing a step's read-out: each sequence processes the logit rows of its run, then all next tokens are drawn
# together.

logger = logging.getLogger(__name__)

_MOST_ENDED = 16  # requests that start and end in one go if no other runs
_UNSOUND = "the model's logits are not finite for this request; try another prompt or initial state"


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A step that was submitted and is not collected yet: its ticket, times and token runs, and the runs' sequences."""

    ticket: Ticket
    times: StepTimes
    live: Sequence[SlotSequence]  # the sequences of the runs in `batch`
    batch: Sequence[TokenRun]


@dataclass(slots=True, eq=False)
class RunOutcome:
    """The outcome of one token run: the events that follow from it, or an error that ends its request alone."""

    live: SlotSequence
    row: RowSource  # the last of the run
    events: Sequence[Event] = ()
    error: Exception | None = None
    is_sound: bool = True

    def read_logits(self) -> F32:
        """Return the logits [V] after the last token of the token run."""
        return self.row().read_full()

    def fail(self, error: Exception) -> None:
        """Let the request end with `error`, and log it."""
        self.error = error
        if isinstance(error, MaskError):
            self.live.context.run(logger.info, "a request ends because of its mask: %s", error)
        else:
            self.live.context.run(logger.exception, "a request failed after its step")


def take_in(step: StepInFlight, readout: Readout, vocab_size: int) -> Iterator[RunOutcome]:
    """Process the results of a step: draw each sequence's next token, and yield the outcome of each token run.

    Each run's logit rows are passed to its sequence first. A run that is no longer wanted has no outcome. The caller
    must conclude an outcome before it asks for the next, since that may release the sequences of its request.
    """
    first = 0
    on_device = readout.drawn or [NOTHING_DRAWN] * len(step.batch)
    for live, run, drawn, is_sound in zip(step.live, step.batch, on_device, readout.sound.tolist(), strict=True):
        rows = RunRows(readout, first, run.rows, vocab_size)
        first += run.rows
        if live.released or drawn.num_run == 0:
            continue
        outcome = RunOutcome(live, rows.last)
        is_dropped = False
        try:
            is_dropped = not is_sound and live.drop_draft()  # without the draft, the logits may be finite
            if is_sound or (drawn.tokens and not is_dropped):
                outcome.events = _advance(live, run, drawn, rows)
            if is_sound and live.draws is not None:
                assert isinstance(live, SamplingSequence), "no other sequence draws"
                events = live.take_draw(live.draws.draw(rows.last()), rows.last)
                outcome.events = [*outcome.events, *events] if outcome.events else events
        except Exception as error:
            outcome.fail(error)
        if not is_sound and not is_dropped and outcome.error is None:
            outcome.error, outcome.is_sound = StepError(_UNSOUND), False
        yield outcome


def go_on(live: SamplingSequence) -> RunOutcome:
    """Draw a sequence's token after its late mask; return the outcome, which the caller concludes."""
    logits = live.own_logits
    assert logits is not None, "asked of one that awaits its mask"
    outcome = RunOutcome(live, partial(LogitRow.of_full, logits, 1))
    try:
        outcome.events = live.draw_late()
    except Exception as error:
        outcome.fail(error)
    return outcome


def _advance(live: SlotSequence, run: TokenRun, drawn: Drawn, rows: RunRows) -> list[Event]:
    if run.masks is not None:
        rows.allowed = live.allowed
    if run.draw is None:
        return live.advance(run, rows)
    assert isinstance(live, SamplingSequence), "no other sequence draws"
    return live.advance_drawn(run, run.draw.count, drawn, rows)


class Scheduler:
    """Runs requests on the slots of a runner by continuous batching: all that hold a slot advance in every step.

    Synchronous, and owned by one thread. It waits only for the runner and, for a short time, for masks. The caller asks
    `is_due` whether to call `step`.
    """

    def __init__(
        self,
        runner: Runner,
        token_bytes: Callable[[int], bytes],
        cache: StateCache | None = None,
        num_slots: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        wake: Callable[[], None] = lambda: None,
        max_draws: int = MOST_DRAWS,
        drafts: DraftSettings = NO_DRAFTS,
        least_tokens: int = LEAST_TOKENS,
        mask_seconds: float = WAIT_SECONDS,
    ) -> None:
        """Start without requests. `token_bytes` returns a token's bytes; `cache` saves states for later prompts.

        Sequences run in the first `num_slots` of the runner's slots; None is all of them. `clock` returns seconds, and
        may start at any value. `wake` is called on another thread when a request may start because its state was read,
        or may go on because its mask was made. The device draws at most `max_draws` tokens of a sequence before the
        host sees them, as far as the runner can; with 0 the host draws all. `drafts` are the settings for drafts of
        texts that repeat themselves. See `find_victims` for `least_tokens`. A step waits `mask_seconds` for masks.
        """
        infos = TokenInfos(token_bytes)
        self._prefixes = Prefixes(runner, cache, infos.data, wake)
        # Not more sequences than the tokens and logit rows of a step, so that each can run a token in every step.
        self.capacity = min(num_slots or runner.num_slots, runner.max_tokens, runner.max_rows)
        self._slots = Slots(self.capacity)
        self._steps: deque[StepInFlight] = deque()  # oldest first
        self._max_draws = max_draws
        self._clock = clock
        self._meter = Meter(clock)
        self.counters = self._meter.counters  # since the start; may be read on any thread
        self.slot_uses = self._slots.uses  # may be called on any thread
        self._shares = TimeShares(self._meter)
        self._drafts = Drafts(runner, drafts)
        self._mask_threads = MaskThreads(self.capacity, wake, self.counters, mask_seconds)
        halts = Halts(runner.shape.vocab_size, infos.data)
        self._shared = Shared(runner, infos, halts, self._meter, self._mask_threads, LoraPlaces(runner))
        self._admission = SlotAllocator(self._shared, self._slots, self._prefixes, self._drafts, least_tokens)
        self._step_seconds = StepSeconds()
        self._clients = LatestClients()  # of requests in the foreground
        self._answered = False  # the last step gave first tokens and ran no batch
        self.failure: str | None = None  # what has failed in the last step, perhaps by the device's fault
        self.failed_in_a_row = 0  # steps

    @property
    def num_live(self) -> int:
        return len(self._slots.live)

    @property
    def num_waiting(self) -> int:
        return len(self._admission.queue)

    @property
    def has_work(self) -> bool:
        """True if `step` would do something: not if all are paused, or await masks or states to be read."""
        return (
            bool(self._steps) or self._slots.num_advancing > 0 or self._admission.can_start or bool(self._slots.ready)
        )

    def is_due(self) -> bool:
        """Return True if the next step can run now. If nothing is to run, the meter counts no time until it can."""
        if self.has_work:
            return True
        self._meter.rest()
        return False

    def check_loras(self, request: GenerateRequest) -> None:
        """Raise InvalidRequestError if the runner has no room for the LoRAs of `request`. For any thread."""
        room = self._shared.runner.lora_room
        misfits = [misfit for lora in request.loras.values() if (misfit := room.misfit(lora)) is not None]
        if len(request.loras) > room.places:
            misfits.append(f"it mixes {len(request.loras)} LoRAs; expected at most {room.places}, or more --max-loras")
        if misfits:
            raise InvalidRequestError("state", ", ".join(request.loras), "one for which there is room", misfits[0])

    def submit(self, key: int, request: GenerateRequest, arrived: float | None = None) -> None:
        """Queue a checked `request` under `key`, never used twice. `arrived` is when its client asked; None is now."""
        now = self._clock()
        if not request.client.is_background:
            self._shares.note_foreground(now)
            self._clients.note(request.client, now)
        self._admission.add(key, request, now if arrived is None else arrived)

    def cancel(self, key: int) -> None:
        """End the request `key` without an event, if it has not ended. Its slot is free even with steps in flight."""
        self._admission.queue.discard(key)
        if (live := self._slots.live.get(key)) is not None:
            self._slots.release(live)

    def pause(self, key: int, paused: bool = True) -> None:
        """Exclude the request `key` from all further steps, or include it again if not `paused`.

        It stays in its slot as long as no other client has less than its share. Does nothing for a request that has
        ended or has had no slot yet.
        """
        self._slots.pause(key, paused)
        self._admission.pause(key, paused)

    def withdraw(self, key: int, error: RnnEngineError) -> list[Delivery]:
        """End `key` with `error` if it has had no slot yet; return the delivery of that as a list, or an empty one."""
        if not self._admission.has_not_begun(key):
            return []
        self.cancel(key)
        return [Delivery(key, error)]

    def expire(self, key: int, error: RnnEngineError) -> list[Delivery]:
        """End the request `key` at its time limit: with the text so far, or with `error` if there is none.

        Return the delivery of the error as a list, or an empty list. The end with the text so far comes from a later
        step.
        """
        live = self._slots.live.get(key) or self._admission.suspended(key)
        if live is None:
            return self.withdraw(key, error)
        if live.cut():
            self.pause(key, False)  # only the end is left for a reader that is behind
            return []
        self.cancel(key)
        return [Delivery(key, error)]

    def abort(self, make_error: Callable[[], RnnEngineError], *, queued: bool = True) -> list[Delivery]:
        """End every request, or if not `queued` those on the device, with new errors; return the deliveries."""
        keys = [*self._slots.live, *(self._admission.queue.keys if queued else self._admission.keys_on_device)]
        for key in keys:
            self.cancel(key)
        while self._steps:
            self._collect()
        return [Delivery(key, make_error()) for key in keys]

    def device_answers(self) -> bool:
        """Test the device by running one token; return True if finite logits come back. Sets `failure` to None."""
        self.failure = None
        slot = self._slots.lowest_free
        if slot is None:
            return True  # others have started in the slots of those that failed; their next step shows it
        try:
            self._shared.runner.write_state(slot, None)
            return bool(run_step(self._shared.runner, [TokenRun(slot, (0,), rows=1)]).sound.all())
        except Exception:
            logger.exception("the device can't run a single token")
            return False

    def close(self) -> None:
        """End the threads that compute token masks. No request may hold a slot."""
        self._mask_threads.close()

    def replace_runner(self, runner: Runner) -> None:
        """Use `runner`, another runner of the same model and sizes, from now on. No request may hold a slot."""
        self._shared.runner = runner
        self._prefixes.replace_runner(runner)
        self._shared.loras.replace_runner(runner)
        self._drafts.replace_runner(runner)
        self.failed_in_a_row = 0

    def step(self) -> list[Delivery]:
        """Give free slots to waiting requests, submit at most one step, and collect at most one; return the deliveries.

        They are the events of the step that was collected; what the runner raises becomes deliveries too. Nothing is
        collected if requests got their first token without a step: that is delivered at once. Nor is anything collected
        if a second step may be submitted behind the first: the next call submits it, so that commands come in between.
        After a `failure`, everything in flight is collected, so that the caller can call `device_answers`.
        """
        self.failure = None
        with self._shared.runner.together():
            deliveries = self._step()
        return self._with_ends(deliveries) + self._with_ends(self._settle())

    def _with_ends(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Wait for the last states of the requests that have ended, since the device reads them together."""
        for place, delivery in enumerate(deliveries):
            if isinstance(delivery.outcome, Finished) and (end := delivery.outcome.end) is not None:
                try:
                    end.state  # noqa: B018  # is kept
                except Exception as error:
                    logger.exception("the state at the end of a request could not be read")
                    self.failure = str(error)
                    deliveries[place] = Delivery(delivery.key, step_error(error))
        return deliveries

    def _settle(self) -> list[Delivery]:
        """Collect all steps in flight if a step has failed; return the deliveries for their requests."""
        deliveries: list[Delivery] = []
        while self.failure is not None and self._steps:
            deliveries += self._collect()
        return deliveries

    def _step(self) -> list[Delivery]:
        self._meter.resume()
        self._admission.keeps_slot_free = self._is_restrained()
        deliveries = self._suspend()
        deliveries += self._admit()
        for ready in self._slots.ready:
            self._conclude(go_on(ready), deliveries)
        self._answered = bool(deliveries) and not self._answered
        if self._answered:
            return deliveries
        if not self._steps:
            deliveries += self._submit_step(self._slots.runnable())
            if self._runnable_ahead():
                return deliveries
        elif live := self._runnable_ahead():
            deliveries += self._submit_step(live)
        return deliveries + self._collect()

    def _runnable_ahead(self) -> list[SlotSequence]:
        """Return the sequences to run in a step that is submitted before the step in flight is done.

        Return nothing if the step in flight yields a token that the host must see: its sequence would have to wait for
        two steps. Return nothing either if steps are long, since a request that arrives would wait for both, or if the
        next step is likely to have a draft. Nor does the next request wait for two steps of requests in the background.
        None of this holds for devices that compute different steps.
        """
        if self._shared.runner.steps_at_once > len(self._steps) > 0:
            return self._slots.runnable()
        live = self._slots.runnable_ahead() if len(self._steps) == 1 else []
        urgent = _foreground(live) if self._is_restrained() else live
        if not urgent or awaits_draft(self._drafts, urgent):
            return []
        num_tokens = None if all(one.phase.draws_ahead(one) for one in urgent) else self._shared.runner.max_tokens
        in_flight = self._steps[0].times
        is_background = self._is_background(urgent)
        is_short = self._step_seconds.is_short(num_tokens, is_background=is_background) and self._step_seconds.is_short(
            None if in_flight.is_decode else in_flight.tokens, is_background=in_flight.is_background
        )
        return live if is_short else []

    def _submit_step(self, live: list[SlotSequence]) -> list[Delivery]:
        """Submit a step of the sequences `live`. If that fails, end their requests; return the errors' deliveries."""
        if not live:
            return []
        if (at_once := self._shared.runner.steps_at_once) > 1:  # the sequences are divided among the steps in flight
            live = sorted(live, key=lambda one: len(one.in_flight))  # those first that are in no other step
            live = live[: max(1, -(-self._slots.num_advancing // at_once))]
        begun, runnable = self._clock(), live
        live, demands, counts = self._divide_step(runnable)
        num_draws = self._count_draws(live)
        batch = [one.phase.run(one, count, num_draws) for one, count in zip(live, counts, strict=True)]
        num_steps = max([run.draw.count for run in batch if run.draw is not None], default=1)
        times = StepTimes(begun, demands, counts, num_steps, is_background=self._is_background(live))
        if self._slots.num_background and (not times.is_background or _foreground(runnable)):
            background = sum(count for one, count in zip(live, counts, strict=True) if one.request.client.is_background)
            self._shares.charge(times.tokens - background, background, num_steps)
        if self._mask_threads.added:
            self._mask_threads.start()
        try:
            ticket = self._shared.runner.submit(batch)
        except Exception as error:
            logger.exception("a step over %d requests was not submitted", len(live))
            return self._fail_step(live, error)
        times.submitted = self._clock()
        self._steps.append(StepInFlight(ticket, times, live, batch))
        return []

    def _divide_step(self, live: list[SlotSequence]) -> tuple[list[SlotSequence], list[TokenDemand], list[int]]:
        """Return which of the sequences `live` run in the next step, their demands, and how many tokens each runs.

        All run except those in the background for which there is no time beside other requests, and some prompts
        beside answers of other clients. None of those in the background run beside the prompt of another request, whose
        client waits; but they may have a step of their own.
        """
        foreground, background, wanted = live, list[SlotSequence](), 0
        max_tokens, max_rows = self._shared.runner.max_tokens, self._shared.runner.max_rows
        if self._is_restrained():
            foreground = _foreground(live)
            background = [one for one in live if one.request.client.is_background]
            has_prompt = any(isinstance(one.phase, Prompt) for one in foreground)
            wanted = min(sum(one.phase.demand(one).tokens for one in background), max_tokens)
            if turn := self._shares.count_turn(self._clock(), len(background), wanted, has_prompt=has_prompt):
                return background, *self._allocate(background, turn, max_rows)
            if has_prompt:
                background = []
        choose_drafts(self._drafts, foreground)
        foreground, most = self._limit_prompts(foreground, max_tokens)
        demands, counts = self._allocate(foreground, most, max_rows)
        if not background:
            return foreground, demands, counts
        num_tokens = sum(counts)
        more = self._shares.count_tokens(num_tokens, min(wanted, max_tokens - num_tokens))
        rows = max_rows - sum(map(count_rows, demands, counts))
        more_demands, more_counts = self._allocate(background[: min(more, rows)], more, rows)
        return foreground + background[: len(more_counts)], demands + more_demands, counts + more_counts

    def _limit_prompts(self, live: list[SlotSequence], max_tokens: int) -> tuple[list[SlotSequence], int]:
        """Return which of `live` run in the next step, and how many tokens in all.

        If one client reads a prompt while another one gets an answer, or may come, the step is short. Some prompts may
        then have to wait for a later one, but not all of any client.
        """
        prompts = [one for one in live if isinstance(one.phase, Prompt)]
        if not prompts:
            return live, max_tokens
        answers = [one for one in live if not isinstance(one.phase, Prompt)]
        clients, answering = ({one.request.client for one in some} for some in (prompts, answers))
        num_answering = min(sum(one.phase.demand(one).tokens for one in answers), max_tokens - len(prompts))
        wanted = max_tokens - num_answering
        if answers and len(clients | answering) > 1:
            most = self._shares.count_prompt_tokens(num_answering, len(clients), wanted)
        elif self._clients.has_other(prompts[0].request.client, self._clock() - QUIET_SECONDS):
            most = self._shares.count_newcomers_tokens(num_answering, len(clients), wanted)
        else:
            return live, max_tokens
        oldest = {one.request.client: one for one in reversed(prompts)}.values()
        late = [one for one in prompts if one not in oldest][most - len(clients) :]
        return [one for one in live if one not in late], num_answering + most

    def _allocate(
        self, live: Sequence[SlotSequence], max_tokens: int, max_rows: int
    ) -> tuple[list[TokenDemand], list[int]]:
        demands = [one.phase.demand(one) for one in live]
        clients = [one.request.client for one in live] if len(self._slots.held) > 1 else ()
        return demands, allocate_tokens(demands, max_tokens, max_rows, clients)

    def _count_draws(self, live: Sequence[SlotSequence]) -> int:
        """Return how many tokens of each sequence the device may draw in the next step before the host sees them.

        It is more than one only if all of `live` decode and no waiting request can start. Then it is as many as are
        drawn within a short time.
        """
        most = min(self._max_draws, self._shared.runner.max_draws)
        if most <= 1 or self._admission.can_start:
            return min(most, 1)
        if not all(one.phase.draws_ahead(one) for one in live):
            return 1
        within, is_background = DRAW_SECONDS, self._is_background(live)
        if is_background and self._is_restrained():
            within = min(within, 2 * self._shares.longest_step)  # only one such step is in flight
        return self._step_seconds.count_draws(most, within, is_background=is_background)

    def _is_background(self, live: Sequence[SlotSequence]) -> bool:
        return self._slots.num_background > 0 and all(one.request.client.is_background for one in live)

    def _is_restrained(self) -> bool:
        """Return True if background requests hold slots, and others, which run or are likely to come, need time."""
        if not self._slots.num_background:
            return False
        now = self._clock()
        if self._slots.num_foreground:
            self._shares.note_foreground(now)
        return not self._shares.is_quiet(now)

    def _collect(self) -> list[Delivery]:
        """Wait for the oldest step in flight, if there is one, and process its results; return the deliveries."""
        if not self._steps:
            return []
        step, asked = self._steps.popleft(), self._clock()
        try:
            readout = self._shared.runner.collect(step.ticket)
        except Exception as error:
            logger.exception("a step over %d requests failed", len(step.live))
            return self._fail_step(step.live, error)
        finally:
            self._step_seconds.note(step.times, asked, self._clock())
        if readout.sound.any():
            self.failed_in_a_row = 0
        else:
            self.failure = "no request of a step had finite logits"
        accepted = self.counters.accepted_tokens
        deliveries: list[Delivery] = []
        for outcome in take_in(step, readout, self._shared.runner.shape.row_size):
            self._conclude(outcome, deliveries)
        num_ahead = sum(drawn.num_run - 1 for drawn in readout.drawn)
        self._meter.collected(step.times, num_ahead, self.counters.accepted_tokens - accepted)
        now = self._clock()
        self._drafts.note_step(step.times, now)
        if step.times.was_ahead or not self._steps:  # else its time may include that of the step behind it
            self._shares.note_step(step.times, now)
        return deliveries

    def _suspend(self) -> list[Delivery]:
        """Suspend requests for other clients, unless a step in flight runs them; return the deliveries of errors."""
        victims = self._admission.find_victims()
        self._slots.set_leaving(victims)
        if not victims:
            return []
        in_flight = {sequence.key for step in self._steps for sequence in step.live}
        deliveries: list[Delivery] = []
        for live in victims:
            if live.key in in_flight:
                continue
            try:
                self._admission.suspend(live)
                self.counters.suspensions += 1
            except Exception as error:
                logger.exception("a request could not be suspended")
                self.failure = str(error)
                deliveries.append(self._fail(live, error))
        return deliveries

    def _admit(self) -> list[Delivery]:
        """Start requests, and return their first events. Few may end at once, so that others go on."""
        deliveries: list[Delivery] = []
        num_ended = 0
        for started in self._admission.start_ready():
            if isinstance(started, FailedStart):
                self.failure = str(started.error)
                deliveries.append(Delivery(started.key, step_error(started.error)))
            else:
                deliveries += started.context.run(self._begin, started)
                num_ended += started.finished
                if num_ended >= (1 if self._slots.num_advancing else _MOST_ENDED):
                    break
        return deliveries

    def _begin(self, live: SamplingSequence) -> list[Delivery]:
        """Return the deliveries of a request's events that come before its first step, now that it has got its slot."""
        try:
            events = live.begin()
        except MaskError as error:
            return [self._fail(live, error)]
        except Exception as error:
            logger.exception("a request failed at its first token")
            self.failure = str(error)
            return [self._fail(live, error)]
        if live.finished:
            self._slots.release(live)
        else:
            self._slots.note_mask(live)
        return [Delivery(live.key, event) for event in events]

    def _conclude(self, outcome: RunOutcome, deliveries: list[Delivery]) -> None:
        """Save a state if a checkpoint is due, and append the events or the error of a token run to `deliveries`."""
        live = outcome.live
        if outcome.error is not None:
            if not outcome.is_sound:
                self._meter.counters.unsound_runs += 1
            elif not isinstance(outcome.error, MaskError):
                self.failure = str(outcome.error)
            deliveries += [Delivery(live.key, event) for event in outcome.events]
            deliveries.append(self._fail(live, outcome.error))
            return
        if live.may_be_due:
            if (point := live.due) is not None:
                self._keep(live, point, outcome.read_logits)
            live.passed()
            if live.finished:
                self._end(live)
        if not live.released:
            self._slots.note_mask(live)
        for event in outcome.events:
            deliveries.append(Delivery(live.key, event))

    def _keep(self, live: SlotSequence, point: CheckpointPoint, read_logits: Callable[[], F32]) -> None:
        live.context.run(self._prefixes.keep, live.request, live.tokens_run, live.slot, point, read_logits)

    def _end(self, live: SlotSequence) -> None:
        """Release the slots of a request that has ended, once the end states of a mix's other sequences are saved."""
        for other in live.sequences:
            if other is not live and other.row is not None and (point := other.due) is not None:
                self._keep(other, point, other.row.copy)
        self._slots.release(live)

    def _fail_step(self, live: Sequence[SlotSequence], error: Exception) -> list[Delivery]:
        """End the requests of a failed step with `error`, except those released before; return the deliveries."""
        self._meter.failed()
        self.failed_in_a_row += 1
        self.failure = str(error)
        return [self._fail(one, error) for one in live if not one.released]

    def _fail(self, live: SlotSequence, error: Exception) -> Delivery:
        self._slots.release(live)
        return Delivery(live.key, step_error(error))


def _foreground(live: Sequence[SlotSequence]) -> list[SlotSequence]:
    return [one for one in live if not one.request.client.is_background]
