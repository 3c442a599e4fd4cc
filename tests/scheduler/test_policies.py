"""The decision to run a step or to wait for more requests, by a clock that the tests set."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.bounds import LONGEST_WAIT
from rnn_engine.errors import InvalidRequestError
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams
from rnn_engine.scheduler import EAGER, BatchingPolicy, Scheduler, parse_policy
from rnn_engine.scheduler.queue import DEFAULT_WAIT, Adaptive, Gather, Load
from rnn_engine.types import Batch
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_runner import FakeRunner, scripted_logits

TOKENIZER = ByteTokenizer()


def wait_seconds(
    policy: BatchingPolicy, sequences: int = 1, capacity: int = 8, waited: float = 0.0, now: float = 0.0
) -> float:
    return policy.wait_seconds(Load(sequences, capacity, waited, now))


def test_eager_never_waits() -> None:
    assert wait_seconds(EAGER) == 0.0


@pytest.mark.parametrize(
    ("sequences", "capacity", "waited", "expected"),
    [
        pytest.param(1, 8, 0.0, 0.5, id="too few"),
        pytest.param(3, 8, 0.2, 0.3, id="too few for a while"),
        pytest.param(1, 8, 0.6, 0.0, id="too few for too long"),
        pytest.param(4, 8, 0.0, 0.0, id="enough"),
        pytest.param(2, 2, 0.0, 0.0, id="no room for more"),
    ],
)
def test_some_are_waited_for_and_no_longer_than_so_long(
    sequences: int, capacity: int, waited: float, expected: float
) -> None:
    assert wait_seconds(Gather(4, 0.5), sequences, capacity, waited) == pytest.approx(expected)


def adaptive(interval: float, step: float, arrivals: int = 50) -> tuple[Adaptive, float]:
    """Return a policy that has seen arrivals and steps, and the time of the last arrival."""
    policy = Adaptive()
    for number in range(arrivals):
        policy.arrived(number * interval)
        policy.stepped(step)
    return policy, (arrivals - 1) * interval


def test_adaptive_does_not_wait_before_it_knows_anything() -> None:
    policy = Adaptive()
    assert wait_seconds(policy) == 0.0
    policy.arrived(0.0)
    assert wait_seconds(policy) == 0.0
    policy.arrived(0.1)
    assert wait_seconds(policy) == 0.0


@pytest.mark.parametrize(
    ("interval", "sequences", "waits"), [(0.1, 1, True), (0.1, 5, True), (0.1, 9, False), (0.6, 1, False)]
)
def test_adaptive_waits_where_the_gain_pays_for_it(interval: float, sequences: int, waits: bool) -> None:
    policy, now = adaptive(interval, step=1.0)
    assert wait_seconds(policy, sequences, capacity=16, now=now) == pytest.approx(waits / (sequences + 1))
    assert wait_seconds(policy, sequences, capacity=sequences, now=now) == 0.0


def test_adaptive_gives_up_when_nobody_comes() -> None:
    policy, now = adaptive(0.1, step=1.0)
    assert wait_seconds(policy, waited=0.3, now=now) == pytest.approx(0.2)
    assert wait_seconds(policy, waited=0.5, now=now) == 0.0
    assert wait_seconds(policy, now=now + 0.7) == 0.0  # it has been quiet for longer than usual


def test_adaptive_follows_what_changes() -> None:
    policy, now = adaptive(0.1, step=1.0)
    for _ in range(50):
        policy.stepped(0.05)
    assert wait_seconds(policy, now=now) == 0.0


policies = st.one_of(
    st.just(EAGER),
    st.builds(Gather, st.none() | st.integers(1, 20), st.floats(0.001, LONGEST_WAIT)),
    st.builds(lambda interval, step: adaptive(interval, step)[0], st.floats(0, 3), st.floats(0, 30)),
)


@given(policy=policies, sequences=st.integers(1, 8), now=st.floats(0, 1000))
def test_no_wait_is_longer_than_the_longest(policy: BatchingPolicy, sequences: int, now: float) -> None:
    longest = wait_seconds(policy, sequences, now=now)
    assert 0.0 <= longest <= LONGEST_WAIT
    assert wait_seconds(policy, sequences, waited=LONGEST_WAIT, now=now) == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("eager", EAGER),
        ("k:4", Gather(4, DEFAULT_WAIT)),
        ("t:0.005", Gather(None, 0.005)),
        ("k-or-t:4,0.005", Gather(4, 0.005)),
    ],
)
def test_policies_have_names(text: str, expected: BatchingPolicy) -> None:
    assert parse_policy(text) == expected
    assert isinstance(parse_policy("adaptive"), Adaptive)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lazy",
        "eager:1",
        "adaptive:1",
        "k",
        "k:",
        "k:0",
        "k:-1",
        "k:1.5",
        "k:1,2",
        "t:0",
        "t:nan",
        "t:x",
        "t:2",
        "k-or-t:4",
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"batching: .* is not allowed; expected eager, k:NUMBER") as refused:
        parse_policy(text)
    assert repr(text) in str(refused.value)


@dataclass
class Desk:
    """A scheduler with a clock of its own, by which each step takes a second."""

    policy: BatchingPolicy
    num_slots: int = 4
    now: float = 0.0
    sent: int = 0
    ended: dict[int, float] = field(default_factory=dict)  # key -> when
    steps: list[float] = field(default_factory=list)  # when they began

    def __post_init__(self) -> None:
        logits = scripted_logits(TOKENIZER.size, TOKENIZER.encode("x" * 9))
        runner = FakeRunner(logits, num_slots=self.num_slots, on_step=self._pass_a_second)
        self.scheduler = Scheduler(runner, TOKENIZER.decode_bytes, policy=self.policy, clock=lambda: self.now)

    def send(self, max_tokens: int = 1) -> None:
        request = GenerateRequest([1, 2], max_tokens=max_tokens, sampling=SamplingParams(temperature=0.0))
        self.scheduler.submit(self.sent, request)
        self.sent += 1

    def run_until(self, end: float) -> None:
        """Run until `end` as a worker does that gets no new requests."""
        while self.now < end:
            wait_seconds = self.scheduler.wait_seconds()
            if wait_seconds is None or self.now + wait_seconds > end:
                self.now = end
            elif self.now + wait_seconds > self.now:  # a clock has no finer steps
                self.now += wait_seconds
            else:
                self._step()

    def _step(self) -> None:
        for delivery in self.scheduler.step():
            if isinstance(delivery.outcome, Finished):
                self.ended[delivery.key] = self.now

    def _pass_a_second(self, batch: Batch) -> None:
        self.steps.append(self.now)
        self.now += 1.0


def test_one_that_comes_in_time_shares_the_step() -> None:
    desk = Desk(Gather(None, 0.5))
    desk.send()
    desk.run_until(0.25)
    desk.send()
    desk.run_until(10)
    assert desk.steps == [0.5]
    assert desk.ended == {0: 1.5, 1: 1.5}


def test_enough_of_them_wait_no_longer() -> None:
    desk = Desk(Gather(2, 0.5))
    desk.send()
    desk.run_until(0.25)
    desk.send()
    desk.run_until(10)
    assert desk.steps == [0.25]


def test_the_wait_of_each_step_begins_anew() -> None:
    desk = Desk(Gather(2, 0.5))
    desk.send(max_tokens=3)
    desk.run_until(10)
    assert desk.steps == [0.5, 2.0, 3.5]
    desk.send()
    desk.run_until(20)
    assert desk.steps[3:] == [10.5]


@given(policy=policies, gaps=st.lists(st.floats(0, 3), min_size=1, max_size=20), slots=st.integers(1, 4))
def test_every_request_ends_in_bounded_time_and_the_steps_are_never_far_apart(
    policy: BatchingPolicy, gaps: list[float], slots: int
) -> None:
    desk = Desk(policy, slots)
    for gap in gaps:
        desk.send(max_tokens=2)
        desk.run_until(desk.now + gap)
    most = 2 * len(gaps)
    desk.run_until(desk.now + most * (1.0 + LONGEST_WAIT) + 1)
    assert sorted(desk.ended) == list(range(len(gaps)))
    assert desk.scheduler.wait_seconds() is None
