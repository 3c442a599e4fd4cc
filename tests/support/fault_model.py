"""A worker on a device that fails in every way, among clients that come, leave and keep their states under names.

Whatever fails, each request ends once, with its answer or with an error that a fault explains. Answers are those of a
device that does not fail. No slot, lock or lead is lost. Cache and names hold the right states. Clients of two API
keys share the engine, and no request goes on from tokens that only the other key's requests have run.
`run_random_faults` draws the operations from a seed.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from rnn_engine.errors import DeviceError, RnnEngineError, StepError, UnavailableError
from rnn_engine.loading.parts import EngineParts, assemble
from rnn_engine.requests import Client, Finished, GenerateRequest, Started, TextDelta
from rnn_engine.scheduler import Delivery, Scheduler, Worker
from rnn_engine.types import InitialState
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from rnn_engine_states.cache.tiers.tier import SlotPool
from rnn_engine_states.frozen import FrozenState, freeze_state
from rnn_engine_states.named.entry import Retention
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.cache_books import check_books
from tests.support.clients import Heard, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, Tokens, table_logits
from tests.support.fault_runner import Fault, FaultRunner, Faults
from tests.support.models import tiny_shape
from tests.support.named_states import BlockingStates, make_states
from tests.support.scheduler_books import check_scheduler, count_leads
from tests.support.scheduler_model import TOKEN_BYTES, VOCAB_SIZE, random_request

NUM_SLOTS = 3
SPARE_SLOTS = 4
LEAST_TOKENS = 4  # that a request runs before it may be suspended for a request of the other API key
API_KEYS = ("one", "two")
NAMES = ("ann", "bob", "cid")
LOGITS = table_logits(VOCAB_SIZE)
FORCED = frozenset({Fault.SLOW, Fault.HANG})  # those that end no request


class FaultModel:
    """The operations on a worker, with checks of what must hold after each. Its turns run on the caller's thread.

    `rnn_engine.scheduler.worker.RETRY_SECONDS` should be set to zeros, so that the worker does not wait.
    """

    def __init__(self, folder: Path | None = None, host_states: int = 6) -> None:
        """`folder` is for the disk tier; None = no disk tier."""
        self.operations: Counter[str] = Counter()
        self.faults = Faults(on_slow=lambda: self.jump(1.0))
        self.now = 0.0
        self.recoveries = 0
        self.answers = 0
        self.errors = 0
        self.refused_loads = 0  # the number of next attempts to open the device that fail
        self._fake = self._make_fake([()])
        self._heard: dict[int, Heard] = {}
        self._sent: dict[int, tuple[GenerateRequest, Tokens, int]] = {}  # and start's tokens, and faults then
        self._expected: dict[int, Heard] = {}  # what an open request would hear alone
        self._ran: Counter[int] = Counter()  # hash of a key, a start and tokens -> requests that may have run these
        self._name_of: dict[int, str] = {}  # request -> the name under which its end is kept
        self._names: dict[str, Tokens] = {}
        self._paused: set[int] = set()
        self._num_sent = 0
        self._fetched = threading.Event()
        self.parts = self._make_parts(folder, host_states)
        assert self.parts.cache is not None
        self.cache = self.parts.cache
        self.scheduler = Scheduler(
            self.parts.runner,
            TOKEN_BYTES.__getitem__,
            self.cache,
            NUM_SLOTS,
            clock=lambda: self.now,
            wake=self._fetched.set,
            least_tokens=LEAST_TOKENS,
        )
        self._delivered: list[Delivery] = []  # by the worker, and not checked yet
        self.worker = Worker(self.scheduler, self._delivered.extend, lambda: None, self.parts.reopen)
        self.named = BlockingStates(self.parts.own_states)
        self.named.on_forgotten(self._drop_root)

    @property
    def open(self) -> list[int]:
        """The keys of requests that have neither ended nor left."""
        return list(self._sent)

    def send(self, request: GenerateRequest, *, name: str | None = None, save_as: str | None = None) -> None:
        """Queue a request. It starts from the state `name`, if there is one of that name."""
        self.operations["send"] += 1
        before = () if name is None else self._names.get(name, ())
        if before and name is not None:
            request = replace(request, initial_state=self.named.get(name).frozen.for_request)
        elif not request.prompt:
            request = replace(request, prompt=[1])
        key, self._num_sent = self._num_sent, self._num_sent + 1
        if save_as is not None:
            request = replace(request, keep_end=True)
            self._name_of[key] = save_as
        self._heard[key] = Heard()
        self._sent[key] = request, before, self._num_faults
        self._expected[key] = run_alone(request, LOGITS, TOKEN_BYTES.__getitem__, before)
        generated = _tokens_of(self._expected[key])
        self._ran.update(_prefix_hashes(request.cache_scope, before, (*request.prompt, *generated)))
        self.scheduler.submit(key, request, self.now)

    def leave(self, key: int) -> None:
        """Cancel a request, as for a client that goes away."""
        self.operations["leave"] += 1
        self.scheduler.cancel(key)
        self._forget(key)

    def pause(self, key: int) -> None:
        """Stop reading as a client, or read again."""
        self.operations["pause"] += 1
        pause = key not in self._paused and bool(self._heard[key].events)
        (self._paused.add if pause else self._paused.discard)(key)
        self.scheduler.pause(key, pause)

    def remove(self, name: str) -> None:
        """Delete a name."""
        self.operations["remove"] += 1
        if self._names.pop(name, None) is not None:
            self.named.delete(name)

    def jump(self, seconds: float) -> None:
        """Advance the clock by `seconds` at once."""
        self.operations["jump"] += 1
        self.now += seconds

    def arm(self, fault: Fault, after: int = 0, times: int = 1) -> None:
        """See `Faults.arm`."""
        self.operations["arm"] += 1
        self.faults.arm(fault, after, times)

    def refuse_loads(self, times: int) -> None:
        """Make the next attempts to open the device fail."""
        self.operations["refuse_loads"] += 1
        self.refused_loads = times

    def turn(self) -> None:
        """Let the worker step, if there is work."""
        self.operations["turn"] += 1
        self._turn()

    def check(self) -> None:
        """Check that slots, queue, cache and names agree."""
        scheduler = self.scheduler
        assert scheduler.num_live + scheduler.num_waiting == len(self._sent)
        assert scheduler.num_live <= scheduler.capacity == NUM_SLOTS
        assert count_leads(scheduler) <= scheduler.num_live
        records = self.cache.checkpoints()
        assert sum(record.locks for record in records) <= scheduler.num_waiting  # those whose states are being read
        check_books(records, self.cache.stats())
        assert {entry.name for entry in self.named.entries()} == set(self._names)
        for name, tokens in self._names.items():
            assert self._fake.tokens_of(self.named.get(name).frozen.state) == tokens

    def end(self) -> None:
        """Serve the remaining requests without faults. Check that nothing is held then, and that every slot serves."""
        self.faults.disarm()
        self.refused_loads = 0
        for key in list(self._paused):
            self.pause(key)
        for _ in range(100_000):
            if not self._sent and not self.scheduler.has_work:  # a step may be in flight behind the last end
                break
            self._turn()
        assert not self._sent, "a request never ends"
        self.check()
        assert not any(record.locks for record in self.cache.checkpoints())
        for number in range(NUM_SLOTS):
            start = InitialState(f"slot {number}", self._fake.make_state((number,)))
            self.scheduler.submit(-1 - number, GenerateRequest([1], initial_state=start, max_tokens=0), self.now)
        self._fake.batches.clear()
        self.scheduler.step()
        check_scheduler(self.scheduler)
        assert {run.slot for run in self._fake.batches[-1]} == set(range(NUM_SLOTS))
        self.parts.close()

    @property
    def _num_faults(self) -> int:
        return sum(self.faults.struck[fault] for fault in Fault if fault not in FORCED)

    def _turn(self) -> None:
        if not self.scheduler.has_work and self.scheduler.num_waiting > 0 and not self._paused:
            assert self._fetched.wait(timeout=60)
            self._fetched.clear()
        if self.scheduler.has_work:
            self.worker.turn()
            self._take()
        assert self.worker.health.status == "ok"

    def _take(self) -> None:
        for delivery in self._delivered:
            key, outcome = delivery.key, delivery.outcome
            assert key in self._sent, f"request {key} has left or ended, and hears {outcome}"
            heard = self._heard[key]
            if isinstance(outcome, RnnEngineError):
                heard.error = outcome
            else:
                heard.events.append(outcome)
            if isinstance(outcome, Started):
                self._expect_own(key, outcome.cached_tokens)
            if heard.ended:
                self._finish(key, heard)
        self._delivered.clear()

    def _expect_own(self, key: int, cached_tokens: int) -> None:
        """Assert that another request of the same API key has run the tokens that this one goes on from."""
        request, before, _ = self._sent[key]
        *_, ran = _prefix_hashes(request.cache_scope, before, tuple(request.prompt[:cached_tokens]))
        assert cached_tokens == 0 or self._ran[ran] > 1, f"request {key} goes on from what its key never ran"

    def _drop_root(self, root: str) -> None:
        self.cache.drop_state(root)

    def _finish(self, key: int, heard: Heard) -> None:
        _, before, faults = self._sent[key]
        if heard.error is not None:
            assert isinstance(heard.error, (StepError, UnavailableError)), heard.error
            assert self._num_faults > faults, f"an error without a fault: {heard.error}"
            self.errors += 1
        else:
            assert_heard(heard, self._expected[key])
            self.answers += 1
            if key in self._name_of:
                self._save(self._name_of[key], before, heard.finished)
        self._forget(key)

    def _save(self, name: str, before: Tokens, finished: Finished) -> None:
        assert finished.end is not None
        tokens = (*before, *finished.end.tokens)
        assert self._fake.tokens_of(finished.end.state) == tokens
        frozen: FrozenState = freeze_state(finished.end.state, self._fake.shape, "end", logits=finished.end.logits)
        states = self.named
        if name in self._names:
            states.compare_and_set(states.get(name), frozen, source="end")
        else:
            states.put(name, frozen, Retention(), source="end")
        self._names[name] = tokens

    def _forget(self, key: int) -> None:
        del self._sent[key], self._heard[key], self._expected[key]
        self._name_of.pop(key, None)
        self._paused.discard(key)

    def _make_parts(self, folder: Path | None, host_states: int) -> EngineParts:
        shape = self._fake.shape
        runner = FaultRunner(self._fake, self.faults)
        host_bytes = host_states * (shape.state_bytes + 4 * VOCAB_SIZE)
        disk = None if folder is None else DiskConfig(folder, background_bytes=0)
        pool = SlotPool(runner, NUM_SLOTS, SPARE_SLOTS)
        cache = make_cache(shape, "model", runner, CacheConfig(host_capacity=host_bytes, disk=disk), pool)
        return assemble(
            runner,
            ByteTokenizer(),
            model="fake",
            device="none",
            weights="f32",
            num_slots=NUM_SLOTS,
            own_states=make_states(shape=shape).table,
            cache=cache,
            load_runner=lambda *_: self._reopen(),
        )

    def _reopen(self) -> FaultRunner:
        if self.refused_loads > 0:
            self.refused_loads -= 1
            raise DeviceError("told to refuse a load")
        self.recoveries += 1
        self._fake = self._make_fake(self._fake.known_states)
        return FaultRunner(self._fake, self.faults)

    @staticmethod
    def _make_fake(known_states: list[Tokens]) -> FakeRunner:
        return FakeRunner(
            LOGITS,
            shape=tiny_shape(layers=1, width=4, head_size=4, ffn=4, vocab=VOCAB_SIZE),
            num_slots=NUM_SLOTS + SPARE_SLOTS,
            max_tokens=24,
            max_draws=4,
            known_states=known_states,
        )


def _tokens_of(heard: Heard) -> list[int]:
    return [info.token for event in heard.events if isinstance(event, TextDelta) for info in event.tokens]


def _prefix_hashes(api_key: str, before: Tokens, tokens: Tokens) -> Iterator[int]:
    """Yield a hash for each prefix of `tokens`, which differs for other API keys and other starts."""
    prefix = hash((api_key, before))
    yield prefix
    for token in tokens:
        prefix = hash((prefix, token))
        yield prefix


def run_random_faults(model: FaultModel, seed: int, operations: int, check_every: int) -> None:
    """Run seeded random operations, as in a service on a bad device."""
    chance = random.Random(seed)
    for number in range(operations):
        _random_operation(model, chance)()
        if number % check_every == 0:
            model.check()
    model.end()


def _random_operation(model: FaultModel, chance: random.Random) -> Callable[[], None]:
    kinds = ("send", "turn", "leave", "pause", "remove", "jump", "arm", "refuse")
    match chance.choices(kinds, (25, 60, 4, 4, 2, 2, 10, 1))[0]:
        case "send" if len(model.open) < 20:
            api_key = chance.choice(API_KEYS)
            names = [f"{api_key}/{name}" for name in NAMES]
            name = chance.choice((None, None, *names))
            save_as = chance.choice((None, None, None, *names))
            request = random_request(chance, name is not None)
            request = replace(request, cache_scope=api_key, client=Client(api_key))
            if chance.random() < 0.5:  # one that the device draws for
                request = replace(request, logprobs=None, max_tokens=chance.randint(0, 24))
            return partial(model.send, request, name=name, save_as=save_as)
        case "leave" | "pause" as kind if model.open:
            return partial(model.leave if kind == "leave" else model.pause, chance.choice(model.open))
        case "remove":
            return partial(model.remove, f"{chance.choice(API_KEYS)}/{chance.choice(NAMES)}")
        case "jump":
            return partial(model.jump, chance.choice((1e-4, 0.01, 1.0, 3600.0, 1e6)))
        case "arm":
            armed = [fault for fault in Fault if fault is not Fault.HANG]
            return partial(
                model.arm, chance.choice(armed), chance.choice((0, 0, 1, 3, 10)), chance.choice((1, 1, 1, 2, 4))
            )
        case "refuse":
            return partial(model.refuse_loads, chance.randint(1, 5))
    return model.turn
