"""Requests that join, leave and fail in any order: each hears what it would alone, and no slot is lost."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rnn_engine.requests import GenerateRequest, SamplingParams
from rnn_engine.types import Batch
from tests.support.clients import Clients, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, random_logits
from tests.support.models import tiny_shape

TOKEN_BYTES = (b"", b"a", b"b", b"ab", b"\n", b"\xc3", b"\xa9", b"\xff")
VOCAB_SIZE = len(TOKEN_BYTES)
LOGITS = random_logits(VOCAB_SIZE)

token_lists = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=20)
requests = st.builds(
    GenerateRequest,
    prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=40),
    max_tokens=st.integers(0, 12),
    stop=st.lists(st.sampled_from([b"ab", b"aab", b"ba\n", "é".encode(), b"\n"]), max_size=2),
    stop_tokens=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=1),
    sampling=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 1.0, 2.0]),
        top_p=st.sampled_from([0.5, 1.0]),
        presence_penalty=st.sampled_from([0.0, 1.0]),
        bias=st.sampled_from([{}, {2: 3.0}]),
        seed=st.integers(0, 2**64 - 1),
    ),
    logprobs=st.sampled_from([None, 0, 5]),
    score_from=st.sampled_from([None, 0]),
    penalised_prompt=token_lists,
)


class AnyOrder(RuleBasedStateMachine):
    """Drives a scheduler and checks it at every step and at the end."""

    @initialize(
        slots=st.integers(1, 4), tokens=st.integers(1, 24), rows=st.integers(1, 8), candidates=st.integers(1, 8)
    )
    def start(self, slots: int, tokens: int, rows: int, candidates: int) -> None:
        self.runner = FakeRunner(
            LOGITS,
            shape=tiny_shape(vocab=VOCAB_SIZE),
            num_slots=slots,
            max_tokens=tokens,
            max_rows=rows,
            num_candidates=candidates,
            fail_when=self.fails,
        )
        self.clients = Clients(self.runner, TOKEN_BYTES.__getitem__)
        self.requests: dict[int, GenerateRequest] = {}
        self.left: set[int] = set()
        self.failing = False
        self.failed: set[int] = set()

    def fails(self, batch: Batch) -> bool:
        return self.failing

    @rule(request=requests)
    def send(self, request: GenerateRequest) -> None:
        self.requests[self.clients.send(request)] = request

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.requests)))
        self.clients.scheduler.cancel(key)
        if not self.clients.heard[key].ended:
            self.left.add(key)

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    @rule()
    def fail(self) -> None:
        self.failing = True
        self._step()
        self.failing = False
        assert self.clients.scheduler.num_live == 0
        self.failed = {key for key, heard in self.clients.heard.items() if heard.error is not None}

    def _step(self) -> None:
        scheduler = self.clients.scheduler
        due = min(scheduler.num_live + scheduler.num_waiting, scheduler.capacity)
        before = len(self.runner.batches)
        for delivery in self.clients.step():
            assert delivery.key not in self.left, "a client that left hears something"
        batches = self.runner.batches[before:]
        assert [len(batch) for batch in batches] == ([due] if due else []), "a request that could run did not"

    @invariant()
    def no_slot_is_lost(self) -> None:
        scheduler = self.clients.scheduler
        ended = sum(heard.ended for heard in self.clients.heard.values())
        assert scheduler.num_live + scheduler.num_waiting == len(self.requests) - ended - len(self.left)
        assert 0 <= scheduler.num_live <= scheduler.capacity

    def teardown(self) -> None:
        if not hasattr(self, "clients"):
            return
        longest = max((len(request.prompt) + request.max_tokens for request in self.requests.values()), default=0)
        self.clients.run(max_steps=1 + len(self.requests) * (longest + 1))
        for key, request in self.requests.items():
            heard = self.clients.heard[key]
            if key in self.left:
                assert not heard.ended
            elif key in self.failed:
                assert str(heard.error) == "told to fail"
            else:
                assert_heard(heard, run_alone(request, LOGITS, TOKEN_BYTES.__getitem__))
        self._all_slots_serve()

    def _all_slots_serve(self) -> None:
        capacity = self.clients.scheduler.capacity
        for _ in range(capacity):
            self.clients.send(GenerateRequest([1], max_tokens=0))
        self.clients.step()
        assert {run.slot for run in self.runner.batches[-1]} == set(range(capacity))


AnyOrder.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestAnyOrder = AnyOrder.TestCase
