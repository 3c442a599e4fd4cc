"""Background requests: what they cost the others, what is left to them, and unchanged answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from statistics import mean

import pytest

from rnn_engine.requests import Client, GenerateRequest, SamplingParams
from rnn_engine.scheduler.meter import (
    BESIDE_ANSWERS,
    LENGTHENING,
    NEWCOMER_SECONDS,
    PROMPT_SECONDS,
    QUIET_SECONDS,
    Meter,
    StepTimes,
    TimeShares,
)
from rnn_engine.scheduler.queue import DECODE
from rnn_engine.types import Batch, Ticket
from tests.support.background_traffic import BATCH, CHATS, Traffic
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Clients
from tests.support.fake_runner import FakeRunner, table_logits
from tools.bench.modelled import SHAPE, DeviceClock, ModelledRunner

TOKENIZER = ByteTokenizer()
LOGITS = table_logits(TOKENIZER.size)
READER = Client("reader")
OTHER_BATCH = Client("other batch", is_background=True)


def ask(client: Client, prompt: int = 3, max_tokens: int = 200, seed: int = 0) -> GenerateRequest:
    """Return a request with a random prompt of `prompt` tokens."""
    tokens = Random(seed).choices(range(2, 200), k=prompt)
    sampling = SamplingParams(temperature=0.0, seed=0)
    return GenerateRequest(tokens, max_tokens=max_tokens, stop_tokens=(), client=client, sampling=sampling)


class RecordingRunner(ModelledRunner):
    """A modelled runner that records how many tokens each step has."""

    def __init__(self, slots: int, step_seconds: float, token_seconds: float, clock: DeviceClock) -> None:
        super().__init__(SHAPE, slots, step_seconds, token_seconds, clock)
        self.sizes: list[int] = []

    def submit(self, batch: Batch) -> Ticket:
        self.sizes.append(sum(len(run.tokens) for run in batch))
        return super().submit(batch)


class ModelledTraffic(Traffic):
    """Traffic on a device whose steps take a modelled time, and the host no time."""

    def __init__(self, step_seconds: float, token_seconds: float, *batches: Client) -> None:
        clock = DeviceClock(work=lambda: 0.0)
        self.runner = RecordingRunner(8, step_seconds, token_seconds, clock)
        super().__init__(self.runner, 8, clock, batches)

    def run_prompts(self, seconds: float) -> None:
        """Run for `seconds`, in which three chats always read prompts that need several steps, and write two tokens."""
        end = self._clock.now() + seconds
        while self._clock.now() < end:
            self._submit_lines()
            for _ in range(3 - self._count(CHATS)):
                self._submit(CHATS, 600, 2, self._clock.now())
            self._step()


DEVICES = [(0.003, 0.0002), (0.001, 0.001), (0.008, 0.0001), (0.005, 0.00005)]
"""Seconds of a step and of each of its tokens: from one where tokens cost most to one where they cost little."""


@pytest.mark.parametrize(("step", "token"), DEVICES)
@pytest.mark.parametrize("every", [0.53, 0.29])
def test_chats_beside_a_batch_wait_little_longer_than_alone(step: float, token: float, every: float) -> None:
    alone, beside = ModelledTraffic(step, token), ModelledTraffic(step, token, BATCH)
    for traffic in (alone, beside):
        traffic.run(6.0, every)
    assert mean(beside.between) < (LENGTHENING + 1.1) * mean(alone.between)
    assert mean(beside.firsts) < 1.5 * mean(alone.firsts)
    assert beside.tokens[BATCH] > 500


@pytest.mark.parametrize(("step", "token"), DEVICES)
def test_long_prompts_of_another_client_at_most_double_the_steps_of_answers(step: float, token: float) -> None:
    def run(*readers: Client) -> ModelledTraffic:
        traffic = ModelledTraffic(step, token, *readers)
        traffic.lines = (600, 600), (1, 1)
        traffic.run(12.0, 0.5)
        return traffic

    alone, beside = run(), run(READER)
    limit = BESIDE_ANSWERS * (1.1 * mean(alone.between) + 2 * token)  # a step has a token of a prompt at least
    assert mean(beside.between) < limit
    assert beside.tokens[READER] > 3000


def test_a_chat_waits_only_for_short_steps_of_another_clients_prompts() -> None:
    def run(*readers: Client) -> ModelledTraffic:
        traffic = ModelledTraffic(0.001, 0.001, *readers)
        traffic.lines = (600, 600), (1, 1)
        traffic.run(12.0, 0.5)
        return traffic

    alone, beside = run(), run(READER)
    sizes = alone.runner.max_tokens, max(beside.runner.sizes[:2]), max(beside.runner.sizes[20:])
    assert sizes[0] == sizes[1] > 4 * sizes[2], "before the first chat comes, steps are long"
    assert max(beside.firsts) < 2 * mean(alone.firsts) + 2 * NEWCOMER_SECONDS  # a step's tokens are shared
    assert beside.tokens[READER] > 7000


@pytest.mark.parametrize(("token", "expected"), [(0.001, 49), (0.002, 32), (0.00001, 256)])
def test_short_steps_have_as_many_tokens_as_there_is_time_for(token: float, expected: int) -> None:
    shares = TimeShares(Meter(lambda: 0.0))
    for tokens in (1, 32, 64, 256):
        for _ in range(3):
            times = StepTimes(0.0, [DECODE], [tokens], 1)
            times.collected = 0.001 + token * tokens
            shares.note_step(times, times.collected)
    assert shares.count_newcomers_tokens(0, 1, 256) == expected
    assert shares.count_newcomers_tokens(0, 40, 256) == max(expected, 40)
    assert shares.count_newcomers_tokens(0, 1, 20) == 20


def test_the_hosts_work_for_background_tokens_counts_as_time_of_their_steps() -> None:
    share = TimeShares(Meter(lambda: 0.0))
    for _ in range(3):
        for tokens, host in ((1, 0.001), (8, 0.002)):
            times = StepTimes(0.0, [DECODE] * tokens, [1] * tokens, 1)
            times.collected = 0.001
            share.note_step(times, times.collected + host)
    assert share.count_tokens(1, 7) == 0  # although the device takes no longer
    for _ in range(math.ceil(0.001 / (LENGTHENING * 0.002))):
        share.charge(1, 0, 1)
    assert share.count_tokens(1, 7) == 7
    share.charge(1, 7, 1)
    assert share.count_tokens(1, 7) == 0


def test_a_turn_has_a_token_for_each_sequence_although_more_tokens_may_take_less_time() -> None:
    share = TimeShares(Meter(lambda: 0.0))
    for tokens, seconds in ((1, 0.010), (2, 0.010), (3, 0.014), (4, 0.012)):
        times = StepTimes(0.0, [DECODE] * tokens, [1] * tokens, 1)
        times.collected = seconds
        for _ in range(3):
            share.note_step(times, seconds)
    share._credit = 0.013
    assert share.count_turn(0.0, 4, 4, has_prompt=True) == 0
    assert share.count_turn(PROMPT_SECONDS, 4, 4, has_prompt=True) == 4


@pytest.mark.parametrize(
    ("submitted", "last", "collected", "cost"),
    [
        (1.25, 1.5, 2.5, 1.0),  # the device runs it once the step before is done
        (3.0, 3.5, 3.75, 2.0),  # the runner has run it before it returned
    ],
)
def test_the_cost_of_a_step_that_is_submitted_before_another_is_done(
    submitted: float, last: float, collected: float, cost: float
) -> None:
    times = StepTimes(1.0, [DECODE], [1], 1)
    times.submitted, times.last, times.collected = submitted, last, collected
    assert times.cost(now=9.0) == cost


@pytest.mark.parametrize(("step", "token"), DEVICES)
def test_prompts_without_a_pause_slow_a_batch_down_but_do_not_stop_it(step: float, token: float) -> None:
    alone, beside = ModelledTraffic(step, token), ModelledTraffic(step, token, BATCH)
    beside.run(PROMPT_SECONDS / 2)
    before = beside.tokens[BATCH]
    for traffic in (alone, beside):
        traffic.run_prompts(PROMPT_SECONDS)
    assert beside.tokens[BATCH] == before
    assert len(beside.firsts) >= len(alone.firsts) - 1
    for traffic in (alone, beside):
        traffic.run_prompts(10.0)
    assert beside.tokens[BATCH] > before + 300
    assert len(beside.firsts) > len(alone.firsts) / (LENGTHENING + 1.05)


def test_a_batch_takes_part_in_all_steps_of_a_device_on_which_that_costs_little() -> None:
    traffic = ModelledTraffic(0.01, 0.00001, BATCH)
    traffic.run(1.0, 0.2)
    alone = ModelledTraffic(0.01, 0.00001, BATCH)
    alone.run(1.0)
    assert traffic.tokens[BATCH] > 0.6 * alone.tokens[BATCH]


def test_steps_are_long_and_slots_full_once_chats_have_not_come_for_a_while() -> None:
    traffic = ModelledTraffic(0.003, 0.0002, BATCH)
    traffic.run(2.0, 0.5)
    traffic.runner.sizes.clear()
    traffic.run(QUIET_SECONDS / 2)
    assert max(traffic.runner.sizes) < 100
    assert max(use for use in uses(traffic)) == 7
    traffic.run(QUIET_SECONDS)
    assert max(traffic.runner.sizes) > 150
    assert max(use for use in uses(traffic)) == 8


def uses(traffic: ModelledTraffic) -> Iterator[int]:
    """Run a second, and yield after each of some steps how many slots are in use."""
    for _ in range(10):
        traffic.run(0.1)
        yield len(traffic.scheduler.slot_uses())


def test_the_next_request_finds_a_slot_without_suspending_a_line() -> None:
    traffic = ModelledTraffic(0.003, 0.0002, BATCH)
    traffic.run(1.0, 0.1)
    before = traffic.scheduler.counters.suspensions
    traffic.run(2.0, 0.3)
    assert len(traffic.firsts) > 10
    assert traffic.scheduler.counters.suspensions == before


def test_two_batches_get_half_each() -> None:
    for every in (None, 0.2):
        traffic = ModelledTraffic(0.003, 0.0002, BATCH, OTHER_BATCH)
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
