"""`LLM` and `AsyncLLM` with the demo model: what their methods return, and how misuse is refused."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import pickle
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_overloads

import numpy as np
import pytest
from pydantic import BaseModel

import rnn_engine
from rnn_engine import (
    LLM,
    AsyncLLM,
    ChatMessage,
    Completion,
    EmbeddingSettings,
    GenerationInterrupted,
    SamplingParams,
    State,
    Tool,
)
from rnn_engine.chat_template import Role
from rnn_engine.demo import pirate_state_path
from rnn_engine.errors import DeviceError, EngineClosedError, InvalidRequestError, StateError, StepError
from rnn_engine_states.files.exchange import StateFiles

FRANCE = "User: What is the capital of France?\n\nAssistant:"
SPELL = "User: Spell the word cat.\n\nAssistant:"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, stop="\n\n")


@dataclass
class Person:
    name: str
    age: int


class Place(BaseModel):
    city: str


def test_a_prompt_gives_a_completion(llm: LLM) -> None:
    done = llm.generate(FRANCE, GREEDY)
    assert str(done) == done.text == " The capital of France is Paris."
    assert done.finish_reason == "stop"
    assert llm.detokenize(done.tokens).strip() == done.text.strip()
    assert done.prompt_tokens == len(llm.tokenize(FRANCE))
    assert done.logprobs == ()
    assert llm.generate(llm.tokenize(FRANCE), GREEDY).text == done.text


def test_many_prompts_come_back_in_their_order_and_equal_to_each_alone(llm: LLM) -> None:
    prompts = [f"User: What is {number} + 1?\n\nAssistant:" for number in range(11)]
    together = llm.generate(prompts, GREEDY)
    assert [done.text for done in together] == [llm.generate(prompt, GREEDY).text for prompt in prompts]
    none: list[str] = []
    assert llm.generate(none) == []


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=count, stop_token_ids=()) for count in (1, 2, 3)]
    assert [done.completion_tokens for done in llm.generate([FRANCE] * 3, params)] == [1, 2, 3]
    with pytest.raises(InvalidRequestError, match=r"params: .*2 of them.* one for each of the 3 prompts"):
        llm.generate([FRANCE] * 3, params[:2])


def test_the_seed_of_a_completion_gives_it_again(llm: LLM) -> None:
    loose = SamplingParams(temperature=2.0, top_p=1.0, max_tokens=12)
    done = llm.generate(FRANCE, loose)
    again = SamplingParams(temperature=2.0, top_p=1.0, max_tokens=12, seed=done.seed)
    assert llm.generate(FRANCE, again).tokens == done.tokens


def test_log_probabilities_come_with_each_token(llm: LLM) -> None:
    done = llm.generate(FRANCE, SamplingParams(temperature=0.0, max_tokens=3, logprobs=2))
    assert [info.token for info in done.logprobs] == list(done.tokens)
    for info in done.logprobs:
        assert info.logprob == pytest.approx(info.top[0][1])
        assert len(info.top) == 2


def test_a_chat_is_answered_by_the_models_template(llm: LLM) -> None:
    asked = "What is the capital of France?"
    expected = llm.generate(FRANCE, GREEDY).text.strip()
    assert llm.chat(asked, GREEDY).text == expected
    assert llm.chat([{"role": "user", "content": asked}], GREEDY).text == expected
    assert llm.chat([ChatMessage(Role.USER, asked)], GREEDY).text == expected
    several = llm.chat([[{"role": "user", "content": asked}]] * 2, GREEDY)
    assert [done.text for done in several] == [expected] * 2


def test_a_chat_can_call_tools(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    for tool in (
        Tool("get_weather", "Weather of a city.", schema),
        {"type": "function", "function": {"name": "get_weather", "parameters": schema}},
    ):
        done = llm.chat("What is the weather in Paris?", GREEDY, tools=[tool], tool_choice="required")
        [call] = done.tool_calls
        assert call.name == "get_weather"
        assert set(json.loads(call.arguments)) == {"city"}
        assert done.text == ""


def test_a_stream_gives_the_text_in_pieces(llm: LLM) -> None:
    pieces = list(llm.stream(FRANCE, GREEDY))
    assert len(pieces) > 1
    assert "".join(pieces) == llm.generate(FRANCE, GREEDY).text
    chat = "".join(llm.stream([{"role": "user", "content": "What is the capital of France?"}], GREEDY))
    assert chat == llm.chat("What is the capital of France?", GREEDY).text


def test_a_stream_that_is_left_ends_its_request(llm: LLM) -> None:
    stream = llm.stream(FRANCE, SamplingParams(max_tokens=100_000, stop_token_ids=()))
    assert next(stream)
    del stream
    assert llm.generate([FRANCE] * 8, GREEDY)[7].text  # more than the slots
    assert llm.engine.stats().active == 0


def test_json_is_returned_as_the_type_that_was_asked_for(llm: LLM) -> None:
    prompt, params = "Ann is 31 years old. As JSON: ", SamplingParams(temperature=0.0, max_tokens=60)
    assert isinstance(llm.json(prompt, Person, params), Person)
    assert isinstance(llm.json([{"role": "user", "content": prompt}], Place, params), Place)
    assert llm.json(prompt, {"const": [1, 2]}, params) == [1, 2]
    with pytest.raises(StepError, match="not complete after max_tokens=2 tokens"):
        llm.json(prompt, Person, SamplingParams(max_tokens=2))


def test_choices_are_ranked_by_probability(llm: LLM) -> None:
    ranked = llm.rank(FRANCE, [" London", " The capital of France is Paris", " Rome"])
    assert ranked[0].index == 1
    assert ranked[0].text == " The capital of France is Paris"
    assert sum(choice.probability for choice in ranked) == pytest.approx(1.0)
    assert ranked[0].score.total >= ranked[1].score.total >= ranked[2].score.total


def test_texts_are_scored_from_their_beginning(llm: LLM) -> None:
    [score] = llm.logprobs([FRANCE])
    tokens = llm.tokenize(FRANCE)
    [ranked] = llm.rank([0], [tokens])
    assert [info.token for info in score.given.tokens] == tokens
    assert score.total == pytest.approx(ranked.score.total)
    assert llm.logprobs([]) == []


def test_pairs_are_scored_as_choices_are(llm: LLM) -> None:
    choices = [" The capital of France is Paris.", " The capital of France is Rome."]
    scored = llm.score([(FRANCE, choice) for choice in choices], alternatives=1)
    ranked = {choice.text: choice.score for choice in llm.rank(FRANCE, choices)}
    for choice, score in zip(choices, scored, strict=True):
        assert score.total == pytest.approx(ranked[choice].total, abs=1e-4)
    greedy = [all(info.token == info.top[0][0] for info in score.tokens) for score in scored]
    assert greedy == [True, False]


def test_texts_become_vectors(llm: LLM) -> None:
    vectors = llm.embed(["one", "two", "three"], EmbeddingSettings(dimensions=16))
    assert vectors.shape == (3, 16)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)


def test_a_state_continues_a_text(llm: LLM) -> None:
    whole = llm.generate(FRANCE, GREEDY)
    tokens = llm.tokenize(FRANCE)
    state = llm.state(tokens[5:], state=llm.state(tokens[:5]))
    assert state.num_tokens == len(tokens)
    assert llm.generate("", GREEDY, state=state).text == whole.text


def test_a_completions_state_has_taken_in_its_text(llm: LLM) -> None:
    first = llm.generate(FRANCE, GREEDY, keep_state=True)
    assert first.state is not None
    apart = llm.state(FRANCE + first.text)
    assert (first.state - apart).norm() < 1e-4 * apart.norm()
    following = llm.generate("\n\n" + SPELL, GREEDY, state=first.state)
    assert following.text == llm.generate(FRANCE + first.text + "\n\n" + SPELL, GREEDY).text


def test_a_chat_goes_on_from_its_state(llm: LLM) -> None:
    pirate = llm.load_state(pirate_state_path())
    first = llm.chat("Who are you?", GREEDY, state=pirate, keep_state=True)
    assert "Arr" in first.text
    assert first.state is not None
    assert first.state.num_tokens is not None
    assert "Arr" in llm.chat("What is the capital of France?", GREEDY, state=first.state).text


def test_states_are_mixed_by_weights(llm: LLM) -> None:
    pirate = llm.load_state(pirate_state_path())
    alone = llm.chat("Who are you?", GREEDY, state=pirate)
    assert llm.chat("Who are you?", GREEDY, state=[(pirate, 1.0)]).text == alone.text
    assert llm.chat("Who are you?", GREEDY, state=[(pirate, 1.0), (None, 0.0)], mix="probability").text == alone.text
    plain = llm.chat("Who are you?", GREEDY, state=[(pirate, 0.0), (None, 1.0)], mix="probability").text
    assert plain == llm.chat("Who are you?", GREEDY).text
    with pytest.raises(InvalidRequestError, match=r"state: .*2 states.* one state"):
        llm.embed(["x"], state=[(pirate, 1.0), (None, 1.0)])  # type: ignore[arg-type]


def test_states_computed_from_others_are_states(llm: LLM, tmp_path: Path) -> None:
    one, two = llm.state("one two three"), llm.state("a poem")
    middle = one.interpolate(two, 0.5)
    middle.save(tmp_path / "middle.state")
    assert llm.load_state(tmp_path / "middle.state") == middle
    assert llm.generate("\n\n" + FRANCE, GREEDY, state=middle).text


def test_an_empty_prompt_has_the_empty_state(llm: LLM) -> None:
    assert llm.state().norm() == 0.0
    assert llm.generate("", GREEDY).prompt_tokens == 1


def test_misuse_is_refused_in_words(llm: LLM) -> None:
    other = StateFiles(llm.state_files.shape, "b" * 32)
    stranger = State(llm.state(), other)
    with pytest.raises(StateError, match="state: it belongs to another model"):
        llm.generate(FRANCE, state=stranger)
    with pytest.raises(InvalidRequestError, match="prompt token"):
        llm.generate([1, 2, 10**9])
    with pytest.raises(
        InvalidRequestError, match=r"prompts\.1: 3 is not allowed; expected a text or a list of token ids"
    ):
        llm.generate([[1], 3])  # type: ignore[list-item]
    with pytest.raises(InvalidRequestError, match=r"messages\.0\.role: 'robot'"):
        llm.chat([{"role": "robot", "content": "Hi"}])
    with pytest.raises(InvalidRequestError, match=r"messages\.1: .* `role` and `content`"):
        llm.chat([{"role": "user", "content": "Hi"}, {"content": "Hi"}])
    with pytest.raises(InvalidRequestError, match=r"tools\.0"):
        llm.chat("Hi", tools=[{"description": "none"}])
    with pytest.raises(InvalidRequestError, match="at least one pair"):
        llm.chat("Hi", state=[])
    with pytest.raises(InvalidRequestError, match="temperature"):
        llm.generate(FRANCE, SamplingParams(temperature=-1.0))


WRONG: dict[str, Callable[[Any], object]] = {
    "prompts: None": lambda llm: llm.generate(None),
    "prompts: b'x' is not allowed; expected a text, a list of token ids": lambda llm: llm.generate(b"x"),
    r"params: \{\} is not allowed; expected SamplingParams": lambda llm: llm.generate("x", {}),
    "params: 3 is not allowed; expected SamplingParams": lambda llm: list(llm.stream("x", 3)),
    "max_tokens: 2.5 is not allowed; expected a whole number": lambda llm: llm.generate(
        "x",
        SamplingParams(max_tokens=2.5),  # type: ignore[arg-type]
    ),
    "temperature: 'hot' is not allowed; expected a number": lambda llm: llm.generate(
        "x",
        SamplingParams(temperature="hot"),  # type: ignore[arg-type]
    ),
    "state: 'pirate' is not allowed; expected a State, or": lambda llm: llm.chat("x", state="pirate"),
    "mix: 'sum' is not allowed; expected one of log, probability": lambda llm: llm.chat("x", mix="sum"),
    "tool_choice: 'all' is not allowed; expected one of none, auto": lambda llm: llm.chat("x", tool_choice="all"),
    "tools: 'weather' is not allowed; expected a list": lambda llm: llm.chat("x", tools="weather"),
    "messages: {.*} is not allowed; expected a text, a list": lambda llm: llm.chat({"role": "user"}),
    r"messages\.1\.0\.content: 3": lambda llm: llm.chat([[{"role": "user", "content": x}] for x in ("a", 3)]),
    r"choices: 'xy' is not allowed; expected a list": lambda llm: llm.rank("x", "xy"),
    r"texts\.1: '' is not allowed; expected at least one token": lambda llm: llm.logprobs(["x", ""]),
    r"pairs\.0: 'xy' is not allowed; expected a pair": lambda llm: llm.score(["xy"]),
    r"texts: \[\] is not allowed; expected at least one text": lambda llm: llm.embed([]),
    "schema: 'x' is not allowed; expected a JSON schema as a dict": lambda llm: llm.json("x", "x"),
}


@pytest.mark.parametrize(("message", "call"), WRONG.items(), ids=[text.partition(" ")[0] for text in WRONG])
def test_a_wrong_argument_is_named(llm: LLM, message: str, call: Callable[[LLM], object]) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        call(llm)


def test_a_model_needs_a_slot_and_a_device() -> None:
    with pytest.raises(InvalidRequestError, match="num_slots: 0 is not allowed"):
        LLM(device="cpu", num_slots=0)
    with pytest.raises(DeviceError, match="no device 'abacus'; expected one of"):
        LLM(device="abacus")


def test_a_model_can_not_be_copied(llm: LLM) -> None:
    for function in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="an LLM can't be copied or pickled"):
            function(llm)


def test_an_error_in_on_done_ends_the_call_alone(llm: LLM) -> None:
    def fail(_index: int, _completion: Completion) -> None:
        raise LookupError("no room")

    with pytest.raises(LookupError, match="no room"):
        llm.generate([FRANCE] * 6, GREEDY, on_done=fail)
    assert llm.generate(FRANCE, GREEDY).text
    assert llm.engine.stats().active == 0


def test_it_works_where_a_loop_is_running_already(llm: LLM) -> None:
    async def in_a_notebook() -> str:
        return llm.generate(FRANCE, GREEDY).text

    assert asyncio.run(in_a_notebook()) == llm.generate(FRANCE, GREEDY).text


def test_several_threads_may_call_it(llm: LLM) -> None:
    expected = llm.generate(FRANCE, GREEDY).text
    with ThreadPoolExecutor(6) as threads:
        assert set(threads.map(lambda _: llm.generate(FRANCE, GREEDY).text, range(12))) == {expected}


def test_on_done_hears_of_each_completion(llm: LLM) -> None:
    heard: dict[int, Completion] = {}
    done = llm.generate([FRANCE, SPELL], GREEDY, on_done=heard.__setitem__)
    assert [heard[0], heard[1]] == done


def test_on_done_may_not_call_back(llm: LLM) -> None:
    for call in (lambda: llm.generate(SPELL), llm.close):
        with pytest.raises(RuntimeError, match="`on_done` must not call the LLM"):
            llm.generate([FRANCE], GREEDY, on_done=lambda *_, call=call: call())


def test_ctrl_c_returns_what_is_done(llm: LLM) -> None:
    endless = SamplingParams(max_tokens=10**6, stop_token_ids=())
    main = threading.main_thread().ident or 0
    with pytest.raises(GenerationInterrupted, match="1 completions are done") as caught:
        llm.generate([FRANCE, SPELL], [GREEDY, endless], on_done=lambda *_: signal.pthread_kill(main, signal.SIGINT))
    assert list(caught.value.completions) == [0]
    assert llm.generate(FRANCE, GREEDY).text == caught.value.completions[0].text


def test_a_closed_model_says_so() -> None:
    with LLM(device="cpu", num_slots=1) as opened:
        pass
    opened.close()
    for call in (lambda: opened.generate(FRANCE), lambda: list(opened.stream(FRANCE)), opened.state):
        with pytest.raises(EngineClosedError, match="this LLM was closed"):
            call()


def test_what_runs_while_it_is_closed_ends() -> None:
    opened = LLM(device="cpu", num_slots=1)
    endless = SamplingParams(max_tokens=10**6, stop_token_ids=())
    streams = [opened.stream(FRANCE, endless) for _ in range(3)]  # two of them wait for the slot

    def read(stream: Iterator[str]) -> str:
        try:
            for _ in stream:
                started.set()
        except EngineClosedError as error:
            return str(error)
        return "it ended"

    started = threading.Event()
    with ThreadPoolExecutor(3) as threads:
        ends = [threads.submit(read, stream) for stream in streams]
        started.wait()
        opened.close()
        assert {end.result() for end in ends} <= {"the engine has stopped", "this LLM was closed"}


async def test_the_twin_returns_the_same(llm: LLM) -> None:
    async with await AsyncLLM.load(device="cpu", num_slots=2) as twin:
        expected = llm.generate([FRANCE, SPELL], GREEDY)
        found = await twin.generate([FRANCE, SPELL], GREEDY)
        assert [done.tokens for done in found] == [done.tokens for done in expected]
        assert "".join([piece async for piece in twin.stream(FRANCE, GREEDY)]) == expected[0].text


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.generate([FRANCE, SPELL], GREEDY),
        lambda llm: llm.chat("Hi", GREEDY),
        lambda llm: anext(llm.stream(FRANCE, GREEDY)),
        lambda llm: llm.json("Hi", bool, GREEDY),
        lambda llm: llm.rank("The capital of France is", [" Paris", " Rome"]),
        lambda llm: llm.rerank("Paris?", ["It is in France."]),
        lambda llm: llm.logprobs([FRANCE]),
        lambda llm: llm.score([("A", " B")]),
        lambda llm: llm.embed([FRANCE]),
        lambda llm: llm.state(FRANCE),
    ],
    ids="generate chat stream json rank rerank logprobs score embed state".split(),  # noqa: SIM905
)
async def test_the_loop_goes_on_while_texts_are_tokenized(
    call: Callable[[AsyncLLM], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await AsyncLLM.load(device="cpu", num_slots=2) as twin:
        has_begun, goes_on, tokenize = threading.Event(), threading.Event(), twin.engine.tokenize

        def wait_for_the_loop(text: str) -> list[int]:
            has_begun.set()
            assert goes_on.wait(60), "the event loop waits for the tokenizer"
            return tokenize(text)

        monkeypatch.setattr(twin.engine, "tokenize", wait_for_the_loop)
        running = asyncio.ensure_future(call(twin))
        while not has_begun.is_set():
            await asyncio.sleep(0)
        goes_on.set()
        await running


def test_the_twins_have_the_same_methods_and_arguments() -> None:
    methods = {name for name, _ in inspect.getmembers(LLM, inspect.isfunction) if not name.startswith("_")}
    twins = {name for name, _ in inspect.getmembers(AsyncLLM, inspect.isfunction) if not name.startswith("_")}
    assert methods == twins
    for name in methods:
        one, other = getattr(LLM, name), getattr(AsyncLLM, name)
        assert list(inspect.signature(one).parameters) == list(inspect.signature(other).parameters), name
        assert len(get_overloads(one)) == len(get_overloads(other)), name


def test_every_exported_name_is_there() -> None:
    for name in rnn_engine.__all__:
        assert getattr(rnn_engine, name).__name__ == name
        assert name in dir(rnn_engine)
    with pytest.raises(AttributeError, match="no attribute 'Llm'"):
        rnn_engine.Llm  # noqa: B018
