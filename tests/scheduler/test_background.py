"""Background requests: what they cost the others, what is left to them, and unchanged answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from statistics import mean

import pytest

from rnn_engine.requests import Client, Finished, GenerateRequest, SamplingParams, TextDelta
from rnn_engine.scheduler import Scheduler
from rnn_engine.scheduler.background import LENGTHENING, QUIET_SECONDS
from rnn_engine.types import Batch, Ticket
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Clients
from tests.support.fake_runner import FakeRunner, table_logits
from tools.bench.modelled import SHAPE, DeviceClock, ModelledRunner

TOKENIZER = ByteTokenizer()
LOGITS = table_logits(TOKENIZER.size)
CHATS, BATCH, OTHER_BATCH = Client("chats"), Client("batch", is_background=True), Client("other", is_background=True)
PROMPT, ANSWER = 60, 32  # tokens of a chat


def ask(client: Client, prompt: int = 3, max_tokens: int = 200, seed: int = 0) -> GenerateRequest:
    """Return a request with a random prompt of `prompt` tokens."""
    tokens = Random(seed).choices(range(2, 200), k=prompt)
    sampling = SamplingParams(temperature=0.0, seed=0)
    return GenerateRequest(tokens, max_tokens=max_tokens, stop_tokens=(), client=client, sampling=sampling)


class RecordingRunner(ModelledRunner):
    """A modelled runner that records how many tokens each step has."""

    def __init__(self, *args: object, **named: object) -> None:
        super().__init__(*args, **named)  # type: ignore[arg-type]
        self.sizes: list[int] = []

    def submit(self, batch: Batch) -> Ticket:
        self.sizes.append(sum(len(run.tokens) for run in batch))
        return super().submit(batch)


@dataclass
class Traffic:
    """A scheduler on a device whose steps take a modelled time, with chats that come and a batch of many lines."""

    step_seconds: float
    token_seconds: float
    slots: int = 8
    batches: tuple[Client, ...] = ()
    firsts: list[float] = field(default_factory=list)  # seconds to the first token of each chat
    between: list[float] = field(default_factory=list)  # mean seconds between two tokens of each chat
    tokens: dict[Client, int] = field(default_factory=dict)  # of the lines of each batch that have ended

    def __post_init__(self) -> None:
        self.clock = DeviceClock(work=lambda: 0.0)
        self.runner = RecordingRunner(SHAPE, self.slots, self.step_seconds, self.token_seconds, self.clock)
        self.scheduler = Scheduler(self.runner, TOKENIZER.decode_bytes, clock=self.clock.now)
        self.tokens = dict.fromkeys(self.batches, 0)
        self._requests: dict[int, GenerateRequest] = {}
        self._arrived: dict[int, float] = {}
        self._moments: dict[int, list[float]] = {}
        self._random = Random(1)

    def run(self, seconds: float, every: float | None = None) -> None:
        """Run for `seconds`, in which a chat comes each `every` seconds, and until all chats have ended."""
        begun = self.clock.now()
        arrivals = [] if every is None else [begun + number * every for number in range(1, int(seconds / every))]
        while self.clock.now() < begun + seconds or self._num_running(CHATS):
            while arrivals and arrivals[0] <= self.clock.now():
                self._submit(ask(CHATS, PROMPT, ANSWER, self._random.randrange(2**32)), arrivals.pop(0))
            for client in self.batches:
                for _ in range(2 * self.slots - self._num_running(client)):
                    size, answer = self._random.randint(5, 100), self._random.randint(8, 48)
                    self._submit(ask(client, size, answer, self._random.randrange(2**32)), self.clock.now())
            if self.scheduler.wait_seconds() is None:
                self.clock.wait_until(arrivals[0] if arrivals else begun + seconds)
            self._step()

    def _submit(self, request: GenerateRequest, arrived: float) -> None:
        key = len(self._arrived)
        self._requests[key], self._arrived[key], self._moments[key] = request, arrived, []
        self.scheduler.submit(key, request, arrived)

    def _num_running(self, client: Client) -> int:
        return sum(request.client == client for request in self._requests.values())

    def _step(self) -> None:
        for key, outcome in [(each.key, each.outcome) for each in self.scheduler.step()]:
            if isinstance(outcome, TextDelta):
                self._moments[key].append(self.clock.now())
            if isinstance(outcome, Finished):
                request, moments = self._requests.pop(key), self._moments.pop(key)
                if request.client == CHATS:
                    self.firsts.append(moments[0] - self._arrived[key])
                    self.between.append((moments[-1] - moments[0]) / (ANSWER - 1))
                else:
                    self.tokens[request.client] += len(request.prompt) + request.max_tokens
        self.scheduler.check()


DEVICES = [(0.003, 0.0002), (0.001, 0.001), (0.008, 0.0001), (0.005, 0.00002)]
"""Seconds of a step and of each of its tokens: from one where tokens cost most to one where they cost little."""


@pytest.mark.parametrize(("step", "token"), DEVICES)
@pytest.mark.parametrize("every", [0.7, 0.3])
def test_chats_beside_a_batch_wait_little_longer_than_alone(step: float, token: float, every: float) -> None:
    alone, beside = Traffic(step, token), Traffic(step, token, batches=(BATCH,))
    for traffic in (alone, beside):
        traffic.run(4.0, every)
    assert mean(beside.between) < (LENGTHENING + 1.1) * mean(alone.between)
    assert mean(beside.firsts) < 1.5 * mean(alone.firsts)
    assert beside.tokens[BATCH] > 500


def test_a_batch_takes_part_in_all_steps_of_a_device_on_which_that_costs_little() -> None:
    traffic = Traffic(0.01, 0.00001, batches=(BATCH,))
    traffic.run(1.0, 0.2)
    alone = Traffic(0.01, 0.00001, batches=(BATCH,))
    alone.run(1.0)
    assert traffic.tokens[BATCH] > 0.6 * alone.tokens[BATCH]


def test_steps_are_long_and_slots_full_once_chats_have_not_come_for_a_while() -> None:
    traffic = Traffic(0.003, 0.0002, batches=(BATCH,))
    traffic.run(2.0, 0.5)
    traffic.runner.sizes.clear()
    traffic.run(QUIET_SECONDS / 2)
    assert max(traffic.runner.sizes) < 100
    assert max(use for use in uses(traffic)) == 7
    traffic.run(QUIET_SECONDS)
    assert max(traffic.runner.sizes) > 150
    assert max(use for use in uses(traffic)) == 8


def uses(traffic: Traffic) -> Iterator[int]:
    """Run a second, and yield after each of some steps how many slots are in use."""
    for _ in range(10):
        traffic.run(0.1)
        yield len(traffic.scheduler.slot_uses())


def test_the_next_request_finds_a_slot_without_suspending_a_line() -> None:
    traffic = Traffic(0.003, 0.0002, batches=(BATCH,))
    traffic.run(1.0, 0.1)
    before = traffic.scheduler.counters.suspensions
    traffic.run(2.0, 0.3)
    assert len(traffic.firsts) > 10
    assert traffic.scheduler.counters.suspensions == before


def test_two_batches_get_half_each() -> None:
    for every in (None, 0.2):
        traffic = Traffic(0.003, 0.0002, batches=(BATCH, OTHER_BATCH))
        traffic.run(10.0, every)
        first, second = traffic.tokens.values()
        assert first == pytest.approx(second, rel=0.1)


def make(slots: int) -> Clients:
    return Clients(FakeRunner(LOGITS, num_slots=slots), TOKENIZER.decode_bytes)


def held(clients: Clients, client: Client) -> int:
    uses = clients.scheduler.slot_uses()
    return sum(clients.requests[use.request].client == client for use in uses)


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_others_take_all_slots_from_a_batch_which_goes_on_after_them(slots: int) -> None:
    clients = make(slots)
    lines = [clients.send(ask(BATCH, seed=number)) for number in range(2 * slots)]
    for _ in range(5):
        clients.step()
    assert held(clients, BATCH) == slots
    chats = [clients.send(ask(CHATS, max_tokens=20)) for _ in range(3 * slots)]
    for _ in range(3):
        clients.step()
    while sum(not clients.heard[key].ended for key in chats) > slots:
        assert held(clients, BATCH) == 0
        clients.step()
    clients.run()
    assert all(len(clients.heard[key].tokens) == 200 for key in lines)
