"""The events of one request, and the independence of requests from each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rnn_engine.errors import EngineClosedError, StepError
from rnn_engine.requests import Finished, GenerateRequest, PromptScored, SamplingParams, Started, TextDelta
from rnn_engine.types import F32, Batch, State
from rnn_engine_states.cache.cache import make_cache
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Clients, Heard, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, random_logits, scripted_logits

TOKENIZER = ByteTokenizer()
VOCAB_SIZE = TOKENIZER.size
GREEDY = SamplingParams(temperature=0.0, seed=0)


def clients(runner: FakeRunner) -> Clients:
    return Clients(runner, TOKENIZER.decode_bytes)


def says(text: str, **changes: int) -> Clients:
    """Return clients of a model that answers `text` to every prompt."""
    runner = FakeRunner(scripted_logits(VOCAB_SIZE, TOKENIZER.encode(text)))
    for name, value in changes.items():
        setattr(runner, name, value)
    return clients(runner)


def prompt(length: int, first: int = 1) -> list[int]:
    return [first + place % 7 for place in range(length)]


def ask(text: str, **fields: object) -> Heard:
    """Return what a greedy client receives from a model that says `text`."""
    return says(text).ask(GenerateRequest(prompt=[1, 2, 3], sampling=GREEDY, **fields))  # type: ignore[arg-type]


def test_a_reply_ends_with_a_stop_token_which_is_counted_but_not_told() -> None:
    heard = ask("Hi ü")
    assert heard.events[0] == Started(prompt_tokens=3, cached_tokens=0)
    assert heard.text == "Hi ü"
    assert [info.data for info in heard.tokens] == [b"H", b"i", b" ", b"\xc3", b"\xbc"]
    assert heard.finished == Finished("stop", completion_tokens=6, seed=0, stop=0)


def test_a_stop_string_is_found_across_tokens_and_after_a_false_start() -> None:
    heard = ask("Hi\n\n\nUser: x", stop=[b"\n\nUser:"])
    assert heard.text == "Hi\n"
    assert heard.finished == Finished("stop", completion_tokens=10, seed=0, stop=b"\n\nUser:")


@pytest.mark.parametrize("stop", ["ü\n", "ü\n".encode(), ["x", "ü\n"], [b"x", "ü\n"]])
def test_stop_strings_are_texts_or_bytes_one_or_several(stop: object) -> None:
    heard = ask("Hi ü\n\nUser: x", stop=stop)
    assert heard.text == "Hi "
    assert heard.finished.stop == "ü\n".encode()


@pytest.mark.parametrize(("max_tokens", "text"), [(1, "H"), (4, "Hi\n\n"), (5, "Hi\n\nU")])
def test_held_back_text_is_told_at_the_greatest_length(max_tokens: int, text: str) -> None:
    heard = ask("Hi\n\nUser: x", stop=[b"\n\nUser:"], max_tokens=max_tokens)
    assert heard.text == text
    assert heard.finished == Finished("length", completion_tokens=max_tokens, seed=0)


def test_held_back_text_is_told_before_a_stop_token() -> None:
    heard = ask("Hi\n\n", stop=[b"\n\nUser:"])
    assert heard.text == "Hi\n\n"
    assert heard.finished.stop == 0


def test_a_stop_string_that_comes_with_the_last_token_allowed_is_a_stop() -> None:
    assert ask("Hi!", stop=[b"!"], max_tokens=3).finished == Finished("stop", 3, seed=0, stop=b"!")


def test_a_reply_may_be_empty() -> None:
    heard = ask("", max_tokens=5)
    assert heard.events == [Started(3, 0), Finished("stop", 1, seed=0, stop=0)]


def test_no_tokens_asked_for_runs_the_prompt_alone() -> None:
    everyone = says("Hi")
    heard = everyone.ask(GenerateRequest(prompt(50), max_tokens=0, sampling=GREEDY))
    assert heard.events == [Started(50, 0), Finished("length", 0, seed=0)]
    assert sum(len(run.tokens) for batch in everyone.runner.batches for run in batch) == 50


def test_other_stop_tokens_may_be_named_or_none() -> None:
    assert ask("a.b", stop_tokens=[ord(".") + 1]).text == "a"
    heard = ask("a", stop_tokens=[], max_tokens=3)
    assert [info.token for info in heard.tokens] == [ord("a") + 1, 0, ord("a") + 1]


def test_a_random_seed_is_told_and_repeats_the_reply() -> None:
    flat = SamplingParams(top_p=1.0, top_k=0)
    logits = random_logits(VOCAB_SIZE, spread=0.1)
    first = clients(FakeRunner(logits)).ask(GenerateRequest([1], max_tokens=20, sampling=flat))
    again = SamplingParams(top_p=1.0, top_k=0, seed=first.finished.seed)
    second = clients(FakeRunner(logits)).ask(GenerateRequest([1], max_tokens=20, sampling=again))
    assert [info.token for info in first.tokens] == [info.token for info in second.tokens]


@pytest.mark.parametrize(("max_tokens_a_step", "max_rows"), [(1, 1), (7, 3), (64, 64)])
@pytest.mark.parametrize("logprobs", [None, 0, 12])
def test_prompts_are_scored_at_every_token_whatever_the_chunks(
    max_tokens_a_step: int, max_rows: int, logprobs: int | None
) -> None:
    logits = random_logits(VOCAB_SIZE)
    request = GenerateRequest(prompt(20), max_tokens=4, sampling=GREEDY, logprobs=logprobs, score_from=0)
    runner = FakeRunner(logits, max_tokens=max_tokens_a_step, max_rows=max_rows)
    heard = clients(runner).ask(request)
    assert_heard(heard, run_alone(request, logits, TOKENIZER.decode_bytes))
    [scored] = [event for event in heard.events if isinstance(event, PromptScored)]
    assert [info.token for info in scored.tokens] == prompt(20)
    assert scored.tokens[0].logprob is None


def test_log_probabilities_are_told_only_where_asked_for() -> None:
    everyone = says("a")
    infos = everyone.ask(GenerateRequest([1], sampling=GREEDY, score_from=0)).tokens
    assert [(info.logprob, info.top) for info in infos] == [(None, ())]
    [info] = everyone.ask(GenerateRequest([1], sampling=GREEDY, logprobs=3)).tokens
    assert info.logprob == pytest.approx(0.0)
    assert [token for token, _ in info.top] == [ord("a") + 1, 0, 1]


def test_a_request_hears_the_same_alone_and_among_others_in_any_slot() -> None:
    logits = random_logits(VOCAB_SIZE)
    sampling = [SamplingParams(seed=seed, top_p=0.9, presence_penalty=0.5) for seed in range(9)]
    requests = [
        GenerateRequest(prompt(3 + 10 * n, first=n), max_tokens=6 + n, sampling=sampling[n], logprobs=2)
        for n in range(9)
    ]
    everyone = clients(FakeRunner(logits))
    keys = [everyone.send(request) for request in requests]
    everyone.run()
    for key, request in zip(keys, requests, strict=True):
        assert_heard(everyone.heard[key], run_alone(request, logits, TOKENIZER.decode_bytes))


def test_decode_goes_on_at_every_step_beside_a_long_prompt() -> None:
    everyone = says("x" * 30)
    talker = everyone.send(GenerateRequest([1], max_tokens=12, sampling=GREEDY))
    everyone.step()
    everyone.send(GenerateRequest(prompt(300), max_tokens=1, sampling=GREEDY))
    for told in range(2, 13):
        everyone.step()
        assert len(everyone.heard[talker].tokens) == told
    assert all(len(batch) == 2 for batch in everyone.runner.batches[1:10])


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    everyone = says("x")
    long = everyone.send(GenerateRequest(prompt(1000), max_tokens=1, sampling=GREEDY))
    everyone.step()
    short = everyone.send(GenerateRequest(prompt(20), max_tokens=1, sampling=GREEDY))
    steps = 0
    while not everyone.heard[short].ended:
        everyone.step()
        steps += 1
    assert everyone.heard[short].text == "x"
    assert steps == 3  # 32 tokens a step, of which a quarter at least is the short prompt's
    assert not everyone.heard[long].ended


def test_a_long_prompt_is_not_starved_by_short_ones_that_keep_coming() -> None:
    everyone = says("x")
    long = everyone.send(GenerateRequest(prompt(320), max_tokens=1, sampling=GREEDY))
    steps = 0
    while not everyone.heard[long].ended:
        everyone.send(GenerateRequest(prompt(20), max_tokens=1, sampling=GREEDY))
        everyone.step()
        steps += 1
    assert everyone.heard[long].text == "x"
    assert steps <= 2 * 320 / 32 + 1  # the oldest prompt has at least half of a step


def test_requests_wait_for_slots_in_the_order_of_their_arrival() -> None:
    everyone = says("abc", num_slots=2)
    keys = [everyone.send(GenerateRequest(prompt(5), sampling=GREEDY)) for _ in range(7)]
    assert (everyone.scheduler.num_live, everyone.scheduler.num_waiting) == (0, 7)
    ended: list[int] = []
    while everyone.scheduler.has_work:
        for delivery in everyone.step():
            if isinstance(delivery.outcome, Finished):
                ended.append(delivery.key)
        assert everyone.scheduler.num_live <= 2
    assert ended == keys


@pytest.mark.parametrize(("bound", "value"), [("num_slots", 1), ("max_tokens", 3), ("max_rows", 2)])
def test_more_requests_than_any_bound_of_the_runner_are_all_served(bound: str, value: int) -> None:
    everyone = says("abc", **{bound: value})
    keys = [everyone.send(GenerateRequest(prompt(9), sampling=GREEDY)) for _ in range(6)]
    everyone.run()
    assert [everyone.heard[key].text for key in keys] == ["abc"] * 6


def test_a_cancelled_request_frees_its_slot_for_the_next_step() -> None:
    everyone = says("x" * 50, num_slots=1)
    for leaves_after in (0, 1, 2, 4):  # in the queue, in the prompt twice, at decode
        leaver = everyone.send(GenerateRequest(prompt(70), sampling=GREEDY))
        stayer = everyone.send(GenerateRequest([1], max_tokens=2, sampling=GREEDY))
        for _ in range(leaves_after):
            everyone.step()
        everyone.scheduler.cancel(leaver)
        everyone.step()
        assert isinstance(everyone.heard[stayer].events[0], Started)
        everyone.run()
        assert everyone.heard[stayer].text == "xx"
        assert not everyone.heard[leaver].ended


def test_cancelling_what_has_ended_or_never_was_changes_nothing() -> None:
    everyone = says("Hi")
    heard = everyone.ask(GenerateRequest([1], sampling=GREEDY))
    everyone.scheduler.cancel(0)
    everyone.scheduler.cancel(99)
    assert heard.text == "Hi"
    assert everyone.ask(GenerateRequest([1], sampling=GREEDY)).text == "Hi"


def test_a_paused_request_keeps_its_slot_and_takes_part_in_no_step() -> None:
    everyone = says("x" * 50, num_slots=2)
    paused, other, waiting = (everyone.send(GenerateRequest([1], max_tokens=9, sampling=GREEDY)) for _ in range(3))
    everyone.step()
    everyone.scheduler.pause(paused)
    everyone.run()
    assert not everyone.scheduler.has_work
    assert not everyone.scheduler.is_due()
    assert (everyone.scheduler.num_live, everyone.scheduler.num_waiting) == (1, 0)
    assert [len(everyone.heard[key].tokens) for key in (paused, other, waiting)] == [1, 9, 9]
    blocked = [everyone.send(GenerateRequest([1], max_tokens=9, sampling=GREEDY)) for _ in range(2)]
    everyone.step()
    everyone.scheduler.pause(blocked[0])
    assert not everyone.scheduler.has_work  # no slot is free for the second
    everyone.scheduler.pause(paused, False)
    everyone.run()
    everyone.scheduler.pause(blocked[0], False)
    everyone.run()
    assert {everyone.heard[key].text for key in (paused, other, waiting, *blocked)} == {"x" * 9}


def test_what_is_paused_may_leave_and_pausing_what_has_ended_changes_nothing() -> None:
    everyone = says("x" * 50, num_slots=1)
    paused = everyone.send(GenerateRequest([1], max_tokens=9, sampling=GREEDY))
    everyone.scheduler.pause(paused)  # it waits for a slot, without events to read yet
    everyone.step()
    everyone.scheduler.pause(paused)
    everyone.scheduler.cancel(paused)
    everyone.scheduler.pause(paused)
    assert everyone.ask(GenerateRequest([1], max_tokens=9, sampling=GREEDY)).text == "x" * 9


def test_a_failed_step_fails_its_requests_alone_and_their_slots_come_back() -> None:
    everyone = says("abc", num_slots=2)
    keys = [everyone.send(GenerateRequest(prompt(5), sampling=GREEDY)) for _ in range(4)]
    everyone.step()
    everyone.runner.fail_when = lambda batch: True
    everyone.step()
    everyone.runner.fail_when = lambda batch: False
    everyone.run()
    errors = [everyone.heard[key].error for key in keys[:2]]
    assert [str(error) for error in errors] == ["told to fail"] * 2
    assert errors[0] is not errors[1]
    assert [everyone.heard[key].text for key in keys[2:]] == ["abc", "abc"]


def test_any_exception_of_the_runner_fails_the_step_with_its_cause() -> None:
    everyone = says("abc")

    def explode(batch: Batch) -> None:
        raise ZeroDivisionError

    everyone.runner.on_step = explode
    error = everyone.ask(GenerateRequest([1], sampling=GREEDY)).error
    assert isinstance(error, StepError)
    assert str(error) == "ZeroDivisionError"
    assert isinstance(error.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_run_that_is_not_sound_ends_its_own_request_and_nothing_of_it_is_kept(value: float) -> None:
    def logits(tokens: Sequence[int]) -> F32:
        return np.full(VOCAB_SIZE, value if 7 in tokens else 0.0, np.float32)

    runner = FakeRunner(logits)
    cache = make_cache(runner.shape, "a model", runner)
    everyone = Clients(runner, TOKENIZER.decode_bytes, cache)
    good = everyone.send(GenerateRequest([5] * 90, max_tokens=3, sampling=GREEDY))
    bad = everyone.send(GenerateRequest([7] * 90, checkpoint_positions=[50], max_tokens=3, sampling=GREEDY))
    everyone.run()
    assert isinstance(everyone.heard[bad].error, StepError)
    assert "not finite" in str(everyone.heard[bad].error)
    assert everyone.heard[good].finished == Finished("stop", 1, seed=0, stop=0)
    assert [checkpoint.length for checkpoint in cache.checkpoints()] == [90]
    assert cache.peek("none", [7] * 90) == 0


def test_a_slot_that_can_not_be_prepared_fails_its_request_alone() -> None:
    def refuse(slot: int, state: State | None) -> None:
        raise MemoryError("no room")

    everyone = says("abc", num_slots=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(everyone.runner, "write_state", refuse)
        assert str(everyone.ask(GenerateRequest([1], sampling=GREEDY)).error) == "no room"
    assert everyone.ask(GenerateRequest([1], sampling=GREEDY)).text == "abc"


def test_aborting_ends_live_and_waiting_requests_with_an_error_of_their_own() -> None:
    everyone = says("abc", num_slots=1)
    keys = [everyone.send(GenerateRequest([1], sampling=GREEDY)) for _ in range(3)]
    everyone.step()
    everyone.take(everyone.scheduler.abort(lambda: EngineClosedError("bye")))
    assert [str(everyone.heard[key].error) for key in keys] == ["bye"] * 3
    assert len({id(everyone.heard[key].error) for key in keys}) == 3
    assert not everyone.scheduler.has_work
    assert everyone.ask(GenerateRequest([1], sampling=GREEDY)).text == "abc"


def test_every_token_is_told_at_its_step_even_while_its_text_is_held_back() -> None:
    everyone = says("\n\nU")
    everyone.send(GenerateRequest([1], stop=[b"\n\nUser:"], max_tokens=3, sampling=GREEDY))
    texts = []
    for _ in range(3):
        [delta] = [one.outcome for one in everyone.step() if isinstance(one.outcome, TextDelta)]
        assert len(delta.tokens) == 1
        texts.append(delta.text)
    assert texts == ["", "", "\n\nU"]


def test_before_the_least_number_of_tokens_neither_stop_strings_nor_stop_tokens_count() -> None:
    assert ask("abc").finished == Finished("stop", completion_tokens=4, seed=0, stop=0)
    assert ask("aba", stop=[b"a"], min_tokens=1).text == "ab"
    request = GenerateRequest([1, 2, 3], sampling=GREEDY, min_tokens=4, max_tokens=9, stop=[b"a", b"\x00"])
    heard = says("a").ask(request)
    assert len(heard.tokens) >= 4
    assert_heard(heard, run_alone(request, scripted_logits(VOCAB_SIZE, TOKENIZER.encode("a")), TOKENIZER.decode_bytes))
