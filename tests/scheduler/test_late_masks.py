"""A mask that takes long: only its own request waits for it, steps go on, and the request's tokens are the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace

import pytest

from rnn_engine.errors import MaskError, TimeLimitError
from rnn_engine.requests import GenerateRequest, MixedState, SamplingParams, Started, StateMix
from rnn_engine.sampling.masks import Mask, TokenMask
from rnn_engine.scheduler.drafts import DraftSettings
from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.config import CacheConfig
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Clients, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, random_logits
from tests.support.scheduler_books import count_late
from tests.support.token_masks import Forms, Residues

TOKENIZER = ByteTokenizer()
VOCAB_SIZE = TOKENIZER.size
LOGITS = random_logits(VOCAB_SIZE)
SAMPLING = SamplingParams(temperature=1.0, top_p=0.95, top_k=0, presence_penalty=0.4, seed=5)


class Gated(Residues):
    """A mask that can't say which tokens are allowed at one place until its gate opens."""

    def __init__(self, gate: threading.Event, at: int) -> None:
        super().__init__(VOCAB_SIZE)
        self._gate = gate
        self._at = at

    def next(self) -> Mask | None:
        if len(self.accepted) == self._at and not self._gate.wait(20):
            raise TimeoutError("everybody waited for this mask")
        return super().next()

    def copy(self) -> Gated:
        other = copy(self)
        other.accepted = list(self.accepted)
        return other


def ask(
    token_mask: Callable[[], TokenMask] | None, prompt: Sequence[int] = (3, 1, 4), **values: object
) -> GenerateRequest:
    request = GenerateRequest(
        prompt, max_tokens=9, stop_tokens=(), sampling=SAMPLING, token_mask=token_mask, logprobs=2
    )
    return replace(request, **values)  # type: ignore[arg-type]


def plain(request: GenerateRequest) -> GenerateRequest:
    """Return `request` with a mask without a gate, which allows the same tokens."""
    return replace(request, token_mask=lambda: Residues(VOCAB_SIZE))


def make_clients(**values: object) -> Clients:
    """Return clients of a scheduler that never waits for masks in its steps."""
    return Clients(FakeRunner(LOGITS), TOKENIZER.decode_bytes, mask_seconds=0.0, **values)  # type: ignore[arg-type]


def make_cache_of(runner: FakeRunner) -> StateCache:
    return make_cache(runner.shape, "a model", runner, CacheConfig())


def step_until_ended(clients: Clients, key: int) -> None:
    for _ in range(200):
        if clients.heard[key].ended:
            return
        if not clients.scheduler.has_work:
            clients.wait_for_fetch()
        clients.step()
    raise AssertionError("the request has not come to its end")


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("other_mask", [None, lambda: Residues(VOCAB_SIZE)], ids=["free", "masked"])
def test_others_end_while_a_mask_is_being_made(at: int, other_mask: Callable[[], TokenMask] | None) -> None:
    clients, gate = make_clients(), threading.Event()
    held, other = ask(lambda: Gated(gate, at)), ask(other_mask)
    late, quick = clients.send(held), clients.send(other)
    step_until_ended(clients, quick)
    assert_heard(clients.heard[quick], run_alone(other, LOGITS, TOKENIZER.decode_bytes))
    assert not clients.heard[late].ended
    gate.set()
    clients.run()
    assert_heard(clients.heard[late], run_alone(plain(held), LOGITS, TOKENIZER.decode_bytes))
    assert clients.scheduler.counters.late_mask_seconds.count >= 1


def test_nothing_is_left_to_do_while_only_a_mask_is_awaited() -> None:
    clients, gate = make_clients(), threading.Event()
    late = clients.send(ask(lambda: Gated(gate, 0)))
    while clients.scheduler.has_work:
        clients.step()
    assert (count_late(clients.scheduler), clients.scheduler.is_due()) == (1, False)
    assert isinstance(clients.heard[late].events[0], Started)
    gate.set()
    clients.run()
    assert clients.heard[late].finished.completion_tokens == 9


@pytest.mark.parametrize("num_candidates", [1, 100])
def test_answers_are_the_same_where_every_mask_is_late(num_candidates: int) -> None:
    clients = Clients(FakeRunner(LOGITS, num_candidates=num_candidates), TOKENIZER.decode_bytes, mask_seconds=0.0)
    initial = clients.after((1, 2, 3))
    cases = [
        (ask(lambda: Residues(VOCAB_SIZE), score_from=1), ()),
        (ask(lambda: Residues(VOCAB_SIZE, all_at=3), keep_end=True), ()),
        (ask(lambda: Forms(VOCAB_SIZE)), ()),
        (ask(lambda: Residues(VOCAB_SIZE), prompt=(), initial_state=initial), (1, 2, 3)),
    ]
    keys = [clients.send(request) for request, _ in cases]
    clients.run()
    for key, (request, before) in zip(keys, cases, strict=True):
        assert_heard(clients.heard[key], run_alone(request, LOGITS, TOKENIZER.decode_bytes, before=before))


def test_a_mix_waits_for_its_mask_too() -> None:
    clients, gate = make_clients(), threading.Event()
    held = replace(ask(lambda: Gated(gate, 2)), mix=StateMix(1.5, [MixedState(-0.5)]))
    late, quick = clients.send(held), clients.send(ask(None))
    step_until_ended(clients, quick)
    assert not clients.heard[late].ended
    gate.set()
    clients.run()
    assert_heard(clients.heard[late], run_alone(plain(held), LOGITS, TOKENIZER.decode_bytes, others=[()]))


def test_the_state_at_the_end_of_a_text_whose_last_mask_was_late_is_kept() -> None:
    runner = FakeRunner(LOGITS)
    cache = make_cache_of(runner)
    clients, gate = Clients(runner, TOKENIZER.decode_bytes, cache, mask_seconds=0.0), threading.Event()
    held = ask(lambda: Gated(gate, 8))
    late, quick = clients.send(held), clients.send(ask(None, max_tokens=30))
    step_until_ended(clients, quick)
    gate.set()
    clients.run()
    text = [info.token for info in clients.heard[late].tokens]
    again = ask(None, prompt=[*held.prompt, *text[:-1]])
    started = clients.ask(again).events[0]
    assert isinstance(started, Started)
    assert started.cached_tokens == len(again.prompt)
    assert clients.heard[clients.num_sent - 1].text == run_alone(again, LOGITS, TOKENIZER.decode_bytes).text


def test_a_request_that_awaits_its_mask_can_be_cut_and_cancelled() -> None:
    clients, gate = make_clients(), threading.Event()
    cut, cancelled = (clients.send(ask(lambda: Gated(gate, 3))) for _ in range(2))
    while clients.scheduler.has_work or min(len(heard.tokens) for heard in clients.heard.values()) < 3:
        if not clients.scheduler.has_work:
            clients.wait_for_fetch()
        clients.step()
    clients.scheduler.cancel(cancelled)
    clients.take(clients.scheduler.expire(cut, TimeLimitError("its time is up")))
    step_until_ended(clients, cut)
    assert (clients.heard[cut].finished.reason, clients.heard[cut].finished.completion_tokens) == ("length", 3)
    assert (clients.scheduler.num_live, count_late(clients.scheduler)) == (0, 0)
    gate.set()
    assert clients.ask(ask(None)).finished.completion_tokens == 9


def test_nothing_is_drafted_by_a_mask_that_takes_long() -> None:
    """An earlier text is not run ahead, since the masks of all its tokens would have to be made first."""
    runner = FakeRunner(LOGITS)
    clients = Clients(
        runner,
        TOKENIZER.decode_bytes,
        make_cache_of(runner),
        drafts=DraftSettings(4, (runner.num_slots - 1,)),
        mask_seconds=0.0,
    )
    clients.ask(replace(ask(lambda: Residues(VOCAB_SIZE)), logprobs=None))
    gate = threading.Event()
    held = replace(ask(lambda: Gated(gate, 4)), logprobs=None)
    late, quick = clients.send(held), clients.send(ask(None, prompt=(9,), max_tokens=30))
    step_until_ended(clients, quick)
    assert not clients.heard[late].ended
    gate.set()
    clients.run()
    assert clients.heard[late].text == run_alone(plain(held), LOGITS, TOKENIZER.decode_bytes).text


@pytest.mark.parametrize(("each", "at"), [(0.6, 1), (0.4, 25)])
def test_masks_that_take_too_much_of_the_processor_end_their_request(
    monkeypatch: pytest.MonkeyPatch, each: float, at: int
) -> None:
    clock = threading.local()  # as of a thread

    def thread_time() -> float:
        clock.seconds = getattr(clock, "seconds", 0.0)
        return float(clock.seconds)

    class Costly(Residues):
        def next(self) -> Mask | None:
            thread_time()
            clock.seconds += each
            return super().next()

    monkeypatch.setattr("rnn_engine.sampling.masks.time.thread_time", thread_time)
    clients = Clients(FakeRunner(LOGITS), TOKENIZER.decode_bytes)
    bad = clients.send(ask(lambda: Costly(VOCAB_SIZE), max_tokens=60))
    good = clients.send(ask(lambda: Residues(VOCAB_SIZE), max_tokens=60))
    while clients.scheduler.has_work:
        clients.step()
        assert clients.scheduler.failure is None  # it is no failure of the device
    assert isinstance(clients.heard[bad].error, MaskError)
    assert "the grammar takes too long to follow" in str(clients.heard[bad].error)
    assert len(clients.heard[bad].tokens) == at - 1
    assert clients.heard[good].finished.completion_tokens == 60
    assert clients.scheduler.counters.unsound_runs == 0
