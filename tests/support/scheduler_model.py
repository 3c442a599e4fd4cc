"""A scheduler among clients that come, leave and suffer failures, with checks of what must hold at every moment.

Each client must receive the events that it would receive alone, whatever is cached, shared or in its way. Tests choose
the operations; `run_random` draws them from a seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from rnn_engine.errors import EngineClosedError
from rnn_engine.requests import Client, GenerateRequest, MixedState, SamplingParams, StateMix
from rnn_engine.sampling.params import MixKind
from rnn_engine.scheduler import DraftSettings
from rnn_engine.types import Batch, InitialState, LoraPairs, LoraRoom
from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.config import CacheConfig
from tests.support.cache_books import check_books
from tests.support.clients import Clients, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, Tokens, table_logits
from tests.support.models import tiny_shape
from tests.support.scheduler_books import count_leads

TOKEN_BYTES = (b"", b"a", b"b", b"ab", b"\n", b"\xc3", b"\xa9", b"\xff")
VOCAB_SIZE = len(TOKEN_BYTES)
STOPS = (b"ab", b"aab", b"ba\n", "é".encode(), b"\n")
PARTS = tuple(
    tuple(random.Random(number).choices(range(VOCAB_SIZE), k=size)) for number, size in enumerate((40, 33, 9))
)
"""What prompts are made of, so that many begin alike."""

CACHE_METHODS = ("peek", "prefetch", "look_up", "restore", "insert")


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a scheduler. `cache_states` is its cache's size; None = no cache. `run_ahead`: see `Clients`."""

    slots: int = 4
    tokens: int = 24
    rows: int = 8
    candidates: int = 8
    cache_states: int | None = 6
    run_ahead: bool = False
    mixes: bool = False  # requests may mix states
    draft_tokens: int = 0  # the most of a sequence in a step; two sequences at a time
    draws: int = 0  # the most that the device draws after a run; see `FakeRunner`
    clients: int = 1  # that share it; the first sends most. More than one suspend each other's requests
    least_tokens: int = 3  # that a request runs before it may be suspended
    steps_at_once: int = 1  # that the runner computes
    loras: int = 0  # places for them; most requests then have one of four


class SchedulerModel:
    """The operations on a scheduler, with checks of what must hold after each."""

    def __init__(self, setting: Setting) -> None:
        self.operations: Counter[str] = Counter()
        spare = range(setting.slots, setting.slots + 2) if setting.draft_tokens else ()
        self.runner = FakeRunner(
            table_logits(VOCAB_SIZE),
            shape=tiny_shape(vocab=VOCAB_SIZE),
            num_slots=setting.slots + len(spare),
            max_tokens=setting.tokens,
            max_rows=setting.rows,
            num_candidates=setting.candidates,
            max_draws=setting.draws,
            num_penalty_slots=2 if setting.draws else 0,
            steps_at_once=setting.steps_at_once,
            lora_room=LoraRoom(setting.loras),
            fail_when=lambda batch: self._failing,
            on_step=self._look_on,
        )
        self.cache = None if setting.cache_states is None else self._make_cache(setting.cache_states)
        drafts = DraftSettings(setting.draft_tokens, spare)
        self.clients = Clients(
            self.runner, TOKEN_BYTES.__getitem__, self.cache, setting.run_ahead, drafts, setting.least_tokens
        )
        self.num_clients = setting.clients
        self._chance = random.Random(0)  # to draw the client of a request
        # Requests that have neither ended nor left -> the tokens that each of their states has taken in
        self.open: dict[int, tuple[Tokens, ...]] = {}
        self.paused: set[int] = set()
        self.tokens_run = 0
        self.steps_ahead = 0  # submitted while another was in flight
        self.may_mix = setting.mixes
        self.device_draws = setting.draws > 0
        self._failing = False
        self._may_fail = False  # a step that fails is or was in flight in this step

    def send(
        self,
        request: GenerateRequest,
        before: Tokens = (),
        others: Sequence[Tokens] = (),
        *,
        logits_known: bool = False,
    ) -> None:
        """Send a request that starts from the state after `before`, if that is not empty.

        The other states of its mix start after `others`.
        """
        self.operations["send"] += 1
        request = replace(request, initial_state=self._after(before, logits=logits_known))
        if self.runner.lora_room.places and (digest := self._chance.choice(("", "p", "q", "r", "s"))):
            start = self.clients.after(before, logits=logits_known and bool(before))
            start = replace(start, root=f"{start.root} {digest}", lora=LoraPairs(digest, {}))
            request = replace(request, initial_state=start)
        if request.mix is not None:
            starts = [self._after(other, logits=logits_known) for other in others]
            mixed = [
                replace(other, initial_state=start) for other, start in zip(request.mix.others, starts, strict=True)
            ]
            request = replace(request, mix=replace(request.mix, others=mixed))
        if self.num_clients > 1:
            number = min(int(self._chance.expovariate(1.0)), self.num_clients - 1)
            request = replace(request, client=Client(f"client {number}", weight=1.0 + number % 2))
        request.check(self.runner.shape, max_logprobs=VOCAB_SIZE, num_slots=self.clients.scheduler.capacity)
        self.open[self.clients.send(request)] = (before, *others)

    def leave(self, key: int) -> None:
        """Cancel a request, as for a client that goes away."""
        self.operations["leave"] += 1
        self.clients.scheduler.cancel(key)
        self._forget(key)

    def pause(self, key: int) -> None:
        """Stop reading as a client, or read again."""
        self.operations["pause"] += 1
        pause = key not in self.paused and bool(self.clients.heard[key].events)
        (self.paused.add if pause else self.paused.discard)(key)
        self.clients.scheduler.pause(key, pause)

    def step(self) -> None:
        self.operations["step"] += 1
        self._step()

    def fail(self) -> None:
        """Run a step that fails, with all requests in it. Steps in flight before it do not fail."""
        self.operations["fail"] += 1
        self._failing = True
        self.runner.batches.clear()
        while self.clients.scheduler.has_work and not self.runner.batches:
            self._step()
        self._failing = False
        while self.runner.failures_in_flight:
            self._step()

    def step_without(self, method: str) -> None:
        """Run a step in which a method of the cache fails. No client may notice."""
        self.operations["step_without"] += 1
        with _broken(self.cache, method):
            self._step()

    def abort(self) -> None:
        """End all requests with an error."""
        self.operations["abort"] += 1
        self.clients.take(self.clients.scheduler.abort(partial(EngineClosedError, "the end")))
        for key in list(self.open):
            assert isinstance(self.clients.heard[key].error, EngineClosedError)
            self._forget(key)
        self._expect_nothing_held()

    def check(self) -> None:
        """Check that slots, queue and cache agree."""
        scheduler = self.clients.scheduler
        assert scheduler.num_live + scheduler.num_waiting == len(self.open)
        assert 0 <= scheduler.num_live <= scheduler.capacity
        assert count_leads(scheduler) <= (scheduler.capacity if self.may_mix else scheduler.num_live)
        if self.cache is not None:
            records = self.cache.checkpoints()
            assert not any(record.locks for record in records)
            check_books(records, self.cache.stats())

    def end(self) -> None:
        """Serve the remaining requests. Then every slot must be free, nothing held, and no request waited for."""
        for key in list(self.paused):
            self.pause(key)
        requests = [self.clients.requests[key] for key in self.open]
        longest = max((len(request.prompt) + request.max_tokens for request in requests), default=0)
        for _ in range(1 + 2 * len(requests) * (longest + 2)):
            if not self.clients.scheduler.has_work:
                break
            self._step()
        assert not self.open
        self._expect_nothing_held()
        self._expect_all_slots_serve()

    def _after(self, tokens: Tokens, *, logits: bool) -> InitialState | None:
        return self.clients.after(tokens, logits=logits) if tokens else None

    def _make_cache(self, num_states: int) -> StateCache:
        num_bytes = num_states * (self.runner.shape.state_bytes + 4 * VOCAB_SIZE)
        return make_cache(self.runner.shape, "a model", self.runner, CacheConfig(host_capacity=num_bytes))

    def _step(self) -> None:
        self.runner.batches.clear()
        had_work, in_flight = self.clients.scheduler.has_work, self.runner.num_in_flight
        self._may_fail = self._failing or self.runner.failures_in_flight > 0
        deliveries = self.clients.step()
        for key in dict.fromkeys(delivery.key for delivery in deliveries):
            assert key in self.open, "a client that left or was done hears something"
            if self.clients.heard[key].ended:
                self._expect_right(key)
                self._forget(key)
        collected = self.runner.num_in_flight < in_flight
        assert bool(self.runner.batches) or collected or bool(deliveries) or not had_work, "nobody advances"
        self.tokens_run += sum(len(run.tokens) for batch in self.runner.batches for run in batch)

    def _look_on(self, batch: Batch) -> None:
        scheduler = self.clients.scheduler
        if self.runner.num_in_flight > 0:
            self.steps_ahead += 1
            return
        if self.runner.lora_room.places:  # a request may wait for a place of its LoRA
            return
        if self.num_clients > 1:  # a running request may soon be suspended, and a paused one may have been
            return
        if self.runner.steps_at_once > 1:  # the requests are divided among the steps in flight
            return
        num_running = scheduler.num_live - len(self.paused)
        if self.may_mix:  # a member may wait for the others, and a request for several slots
            assert len(batch) >= num_running, "a request in a slot does not advance"
            return
        assert len(batch) == num_running, "a request in a slot does not advance"
        assert scheduler.num_live == scheduler.capacity or scheduler.num_waiting == 0 or count_leads(scheduler) > 0, (
            "a request waits for nobody"
        )

    def _expect_right(self, key: int) -> None:
        heard = self.clients.heard[key]
        if self._may_fail and heard.error is not None:
            assert str(heard.error) == "told to fail"
        else:
            expected = run_alone(
                self.clients.requests[key],
                self.runner.logits,
                TOKEN_BYTES.__getitem__,
                self.open[key][0],
                self.open[key][1:],
            )
            assert_heard(heard, expected)

    def _forget(self, key: int) -> None:
        for table in (self.open, self.clients.heard, self.clients.requests):
            table.pop(key, None)
        self.paused.discard(key)

    def _expect_nothing_held(self) -> None:
        scheduler = self.clients.scheduler
        assert (scheduler.num_live, scheduler.num_waiting, count_leads(scheduler)) == (0, 0, 0)
        self.check()

    def _expect_all_slots_serve(self) -> None:
        for number in range(self.clients.scheduler.capacity):
            start = replace(self.clients.after((number,)), root=f"slot {number}")
            self.clients.send(GenerateRequest([1], initial_state=start, max_tokens=0))
        self.runner.batches.clear()
        for _ in range(self.runner.steps_at_once):
            self.clients.step()
        slots = [run.slot for batch in self.runner.batches for run in batch]
        assert sorted(slots) == list(range(self.clients.scheduler.capacity))


@contextmanager
def _broken(cache: StateCache | None, method: str) -> Iterator[None]:
    def fail(*_args: object, **_fields: object) -> None:
        raise RuntimeError("out of order")

    setattr(cache, method, fail)
    try:
        yield
    finally:
        delattr(cache, method)


def run_random(model: SchedulerModel, seed: int, operations: int, check_every: int) -> None:
    """Run seeded random operations, as in a service: mostly arrivals and steps, now and then the others."""
    chance = random.Random(seed)
    for number in range(operations):
        _random_operation(model, chance)()
        if number % check_every == 0:
            model.check()
    model.end()


def _random_operation(model: SchedulerModel, chance: random.Random) -> Callable[[], None]:
    kind = chance.choices(("send", "step", "leave", "pause", "fail", "without", "abort"), (25, 65, 6, 4, 1, 2, 0.05))[0]
    if kind == "send" and len(model.open) < 30:
        before = _random_before(chance)
        request = random_request(chance, bool(before))
        if model.device_draws and chance.random() < 0.9:
            request = replace(request, max_tokens=chance.randint(0, 40))
        if not model.may_mix or chance.random() < 0.5:
            return partial(model.send, request, before, logits_known=True)
        others = [_random_before(chance) for _ in range(chance.randrange(model.clients.scheduler.capacity))]
        return partial(model.send, _mixed(chance, request, before, others), before, others, logits_known=True)
    if kind in ("leave", "pause") and model.open:
        return partial(model.leave if kind == "leave" else model.pause, chance.choice(list(model.open)))
    if kind == "without" and model.cache is not None:
        return partial(model.step_without, chance.choice(CACHE_METHODS))
    return {"fail": model.fail, "abort": model.abort}.get(kind, model.step)


def _random_before(chance: random.Random) -> Tokens:
    return tuple(chance.choices((1, 2), k=chance.choice((0, 0, 0, 1, 2))))


def _mixed(
    chance: random.Random, request: GenerateRequest, before: Tokens, others: Sequence[Tokens]
) -> GenerateRequest:
    """Return `request` with a mix of its state and others. It has a prompt if one of the states is empty."""
    kind: MixKind = "log" if chance.random() < 0.7 else "probability"
    weights = [chance.choice((1.0, 0.5, 2.0)), *(chance.choice((0.0, 0.7, 1.0)) for _ in others)]
    if kind == "log" and others:
        weights[-1] = -0.5
    own = [random_request(chance, may_be_empty=False).prompt if chance.random() < 0.3 else None for _ in others]
    mixed = [MixedState(weight, prompt=prompt) for weight, prompt in zip(weights[1:], own, strict=True)]
    prompt = request.prompt if all((before, *others)) else request.prompt or (1,)
    mix = StateMix(weights[0], mixed, kind)
    # The repeat penalty depends on the size of logits, and a mix's expected logits are known only up to a constant.
    sampling = replace(request.sampling, repeat_penalty=1.0)
    return replace(request, prompt=prompt, mix=mix, score_from=None, sampling=sampling)


def random_request(chance: random.Random, may_be_empty: bool) -> GenerateRequest:
    parts = chance.choices(PARTS, k=chance.randint(0, 3))
    tail = chance.choices(range(VOCAB_SIZE), k=chance.randint(not (parts or may_be_empty), 6))
    prompt = [token for part in parts for token in part] + tail
    positions = [chance.randint(0, len(prompt)) for _ in range(chance.choice((0, 0, 1, 2)))]
    return GenerateRequest(
        prompt=prompt,
        turn_positions=positions[:1],
        checkpoint_positions=positions[1:],
        max_tokens=chance.randint(0, 8),
        stop=chance.sample(STOPS, chance.choice((0, 0, 1, 2))),
        stop_tokens=chance.sample(range(VOCAB_SIZE), chance.choice((0, 1))),
        sampling=SamplingParams(
            temperature=chance.choice((0.0, 1.0)),
            top_p=chance.choice((0.5, 1.0)),
            seed=chance.randrange(2**32),
            repeat_penalty=chance.choice((1.0, 1.0, 1.5)),
            repeat_last_n=chance.choice((-1, 1, 3)),
        ),
        logprobs=chance.choice((None, 0, 3)),
        score_from=chance.choice((None, None, 0, max(len(prompt) - chance.randint(1, 6), 0))),
        keep_end=chance.random() < 0.3,
        priority=chance.choice((0, 0, 0, 5, -5)),
    )
