"""Requests that start from a state, are scored from a position on, or keep the state at their end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rnn_engine.requests import Finished, GenerateRequest, PromptScored, SamplingParams, Started
from rnn_engine.types import ReadyState
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.checkpoint import CheckpointKind
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Clients, Heard, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, random_logits, scripted_logits

TOKENIZER = ByteTokenizer()
LOGITS = random_logits(TOKENIZER.size)
GREEDY = SamplingParams(temperature=0.0, seed=0)
BEFORE = (5, 6, 7)
PROMPT = [1 + place % 7 for place in range(90)]


def make(*, cached: bool = True, says: str | None = None) -> Clients:
    logits = LOGITS if says is None else scripted_logits(TOKENIZER.size, TOKENIZER.encode(says))
    runner = FakeRunner(logits)
    cache = make_cache(runner.shape, "a model", runner) if cached else None
    return Clients(runner, TOKENIZER.decode_bytes, cache)


def tokens_run(clients: Clients) -> int:
    return sum(len(run.tokens) for batch in clients.runner.batches for run in batch)


def ask(clients: Clients, request: GenerateRequest) -> Heard:
    """Return the events of a request, after checking that they are the same as alone."""
    before = () if request.initial_state is None else clients.runner.tokens_of(request.initial_state.state)
    heard = clients.ask(request)
    assert_heard(heard, run_alone(request, clients.runner.logits, clients.token_bytes, before))
    return heard


def started(heard: Heard) -> Started:
    event = heard.events[0]
    assert isinstance(event, Started)
    return event


def scored(heard: Heard) -> PromptScored:
    [event] = [event for event in heard.events if isinstance(event, PromptScored)]
    return event


def checkpoints(clients: Clients) -> dict[int, CheckpointKind]:
    assert clients.cache is not None
    return {one.length: one.kind for one in clients.cache.checkpoints()}


@pytest.mark.parametrize("cached", [False, True])
def test_a_request_goes_on_from_a_state(cached: bool) -> None:
    clients = make(cached=cached)
    request = GenerateRequest(PROMPT, initial_state=clients.after(BEFORE), max_tokens=5, sampling=GREEDY, logprobs=2)
    first, second = ask(clients, request), ask(clients, request)
    assert started(first).cached_tokens == 0
    assert started(second).cached_tokens == (len(PROMPT) if cached else 0)


def test_what_starts_from_different_states_shares_nothing_in_the_cache() -> None:
    clients = make()
    starts = [None, clients.after(BEFORE), clients.after((9,))]
    for start in starts:
        assert started(ask(clients, GenerateRequest(PROMPT, initial_state=start, sampling=GREEDY))).cached_tokens == 0


@pytest.mark.parametrize("max_tokens", [0, 1, 6])
@pytest.mark.parametrize("keep_end", [False, True])
def test_an_empty_prompt_goes_on_from_known_logits(max_tokens: int, keep_end: bool) -> None:
    clients = make()
    start = clients.after(BEFORE)
    request = GenerateRequest(
        [], initial_state=start, max_tokens=max_tokens, sampling=GREEDY, score_from=0, keep_end=keep_end
    )
    heard = ask(clients, request)
    assert heard.events[:2] == [Started(0, 0), PromptScored(())]
    assert tokens_run(clients) == max(max_tokens - (not keep_end), 0)


def test_an_empty_path_is_not_kept() -> None:
    clients = make(says="")
    ask(clients, GenerateRequest([], initial_state=clients.after(BEFORE), sampling=GREEDY))
    assert checkpoints(clients) == {}


def test_the_first_token_is_scored_by_the_logits_of_the_start() -> None:
    clients = make()
    for logits in (True, False):
        request = GenerateRequest(
            PROMPT[:4],
            initial_state=clients.after(BEFORE, logits=logits),
            max_tokens=0,
            sampling=GREEDY,
            logprobs=3,
            score_from=0,
        )
        assert (scored(ask(clients, request)).tokens[0].logprob is None) == (not logits)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("score_from", [0, 1, 2, 40, 89])
def test_only_the_tokens_from_a_position_on_are_scored_and_told(score_from: int, cached: bool) -> None:
    clients = make(cached=cached)
    request = GenerateRequest(PROMPT, max_tokens=2, sampling=GREEDY, logprobs=1, score_from=score_from)
    assert len(scored(ask(clients, request)).tokens) == len(PROMPT) - score_from
    rows = sum(run.rows for batch in clients.runner.batches for run in batch)
    kept = cached and score_from > 1  # at the last token before those that are scored
    assert rows == len(PROMPT) - max(score_from - 1, 0) + kept + 1  # and one for the second new token


def test_all_that_is_scored_after_a_context_goes_on_from_its_last_token_but_one() -> None:
    clients = make()
    context = PROMPT[:60]
    for number, choice in enumerate([[20], [21, 22, 23], [20, 24], [20]]):
        before = tokens_run(clients)
        request = GenerateRequest(context + choice, max_tokens=0, sampling=GREEDY, score_from=60)
        assert started(ask(clients, request)).cached_tokens == (59 if number else 0)
        assert tokens_run(clients) - before == len(choice) + (1 if number else 60)
    assert checkpoints(clients) == {59: CheckpointKind.MARK}


def test_a_prompt_that_is_scored_from_its_beginning_is_run_whole_and_may_be_gone_on_from() -> None:
    clients = make()
    ask(clients, GenerateRequest(PROMPT, max_tokens=1, sampling=GREEDY))
    assert started(ask(clients, GenerateRequest(PROMPT, sampling=GREEDY, score_from=0))).cached_tokens == 0
    assert started(ask(clients, GenerateRequest([*PROMPT, 3], sampling=GREEDY))).cached_tokens == len(PROMPT)


def test_turns_and_marks_are_kept() -> None:
    clients = make()
    ask(clients, GenerateRequest(PROMPT, turn_positions=[40], checkpoint_positions=[7], max_tokens=0, sampling=GREEDY))
    assert checkpoints(clients) == {
        7: CheckpointKind.MARK,
        40: CheckpointKind.TURN,
        len(PROMPT): CheckpointKind.PROMPT_END,
    }


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("says", "taken_in"),
    [
        pytest.param("abcdefgh", "abcd", id="the greatest length"),
        pytest.param("abc", "abc", id="a stop token"),
        pytest.param("ab!", "ab", id="a stop string"),
        pytest.param("", "", id="nothing"),
        pytest.param("abc!", "abc", id="a stop string with the last token allowed"),
    ],
)
def test_the_end_has_taken_in_all_but_what_ended_the_text(says: str, taken_in: str, cached: bool) -> None:
    clients = make(cached=cached, says=says)
    request = GenerateRequest([1, 2, 3], max_tokens=4, stop=[b"!"], sampling=GREEDY, keep_end=True)
    for _ in range(2):  # from the beginning, and from the cache
        end = ask(clients, request).finished.end
        assert end is not None
        assert end.tokens == (1, 2, 3, *TOKENIZER.encode(taken_in))


def test_the_end_of_a_request_may_be_started_from() -> None:
    clients = make()
    first = GenerateRequest(PROMPT, max_tokens=4, stop_tokens=(), sampling=GREEDY, keep_end=True)
    heard = ask(clients, first)
    end = heard.finished.end
    assert end is not None
    start = replace(clients.after(()), root="the end", state=end.state, logits=end.logits)
    whole = ask(clients, replace(first, max_tokens=10))
    rest = ask(clients, GenerateRequest([], initial_state=start, max_tokens=6, stop_tokens=(), sampling=GREEDY))
    assert [info.token for info in (*heard.tokens, *rest.tokens)] == [info.token for info in whole.tokens]


def test_the_end_is_the_readers_own() -> None:
    clients = make()
    request = GenerateRequest(PROMPT, max_tokens=0, sampling=GREEDY, keep_end=True)
    for _ in range(2):
        end = ask(clients, request).finished.end
        assert end is not None
        end.logits[:] = np.nan
    assert clients.runner.rows_read == 2  # for the cache, and for the reader; the second time from the cache


@pytest.mark.parametrize("name", ["start_read", "result"])
def test_an_end_that_can_not_be_read_fails_its_request_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = make(cached=False)

    def refuse(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(clients.runner if name == "start_read" else ReadyState, name, refuse)
    keys = [
        clients.send(GenerateRequest(PROMPT, max_tokens=3, sampling=GREEDY, keep_end=keep)) for keep in (True, False)
    ]
    clients.run()
    assert str(clients.heard[keys[0]].error) == "no room"
    assert isinstance(clients.heard[keys[1]].events[-1], Finished)
