"""A request with a grammar: the engine compiles it, and the answer is one of its texts."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator

from rnn_engine.engine import Engine
from rnn_engine.errors import EngineClosedError, InvalidRequestError
from rnn_engine.grammar import Grammar, json_grammar
from rnn_engine.loading.parts import assemble
from rnn_engine.requests import Event, Finished, GenerateRequest, MixedState, SamplingParams, StateMix, TextDelta
from rnn_engine.sampling.masks import Thinking, ThinkingMask
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_runner import FakeRunner, table_logits

TOKENIZER = ByteTokenizer()
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog"]},
        "ages": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["kind", "ages"],
    "additionalProperties": False,
}


def make_engine() -> Engine:
    runner = FakeRunner(table_logits(TOKENIZER.size))
    return Engine(assemble(runner, TOKENIZER, model="fake", device="none", weights="f32"))


def ask(grammar: Grammar, seed: int = 0, max_tokens: int = 200, *, keep_end: bool = False) -> GenerateRequest:
    sampling = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, seed=seed)
    return GenerateRequest([1], grammar=grammar, sampling=sampling, max_tokens=max_tokens, keep_end=keep_end)


async def read(engine: Engine, request: GenerateRequest) -> tuple[str, Finished]:
    events: list[Event] = [event async for event in engine.generate(request)]
    finished = events[-1]
    assert isinstance(finished, Finished)
    return "".join(event.text for event in events if isinstance(event, TextDelta)), finished


async def test_answers_are_texts_of_the_grammar_and_end_with_it() -> None:
    async with make_engine() as engine:
        answers = await asyncio.gather(*(read(engine, ask(json_grammar(SCHEMA), seed)) for seed in range(12)))
        assert engine.counters().grammar_compile_seconds.count == 1
        assert 0 < engine.counters().mask_seconds.count < engine.counters().generated_tokens
    for text, finished in answers:
        Draft202012Validator(SCHEMA).validate(json.loads(text))
        assert (finished.reason, finished.stop) == ("stop", None)
    assert len({text for text, _ in answers}) > 3


async def test_a_key_does_not_learn_which_grammars_another_uses() -> None:
    async with make_engine() as engine:
        for scope in ("ann", "bob", "ann"):
            await read(engine, replace(ask(Grammar("regex", "[ab]{5}")), cache_scope=scope))
        assert engine.counters().grammar_compile_seconds.count == 2


@pytest.mark.parametrize("grammar", [json_grammar(SCHEMA), Grammar("kbnf", 'start ::= "[" #"[0-9]{2}" "]";')])
async def test_an_answer_goes_on_with_a_text_of_the_grammar_that_the_prompt_has_begun(grammar: Grammar) -> None:
    async with make_engine() as engine:
        whole, _ = await read(engine, ask(grammar))
        for length in (1, len(whole) - 1):
            begun = TOKENIZER.encode(whole[:length])
            request = replace(ask(grammar), prompt=[1, *begun], grammar_prefix=length)
            rest, finished = await read(engine, request)
            assert finished.reason == "stop"
            Draft202012Validator(SCHEMA if grammar.kind == "json_schema" else {"type": "array"}).validate(
                json.loads(whole[:length] + rest)
            )


async def test_a_beginning_that_no_text_of_the_grammar_has_is_refused() -> None:
    async with make_engine() as engine:
        for prompt, length, reason in (
            ("ax", 2, "followed"),
            ("ab", 2, "ends with them"),
            ("a", 3, "0 to 2"),
            ("b", 1, ""),
        ):
            request = replace(ask(Grammar("regex", "ab")), prompt=[1, *TOKENIZER.encode(prompt)], grammar_prefix=length)
            with pytest.raises(InvalidRequestError, match=rf"grammar_prefix_tokens: {length} .*{reason}"):
                await read(engine, request)
        with pytest.raises(InvalidRequestError, match="grammar_prefix_tokens"):
            await read(engine, GenerateRequest([1], grammar_prefix=1))


async def test_a_mix_of_states_answers_by_the_grammar() -> None:
    mix = StateMix(1.5, [MixedState(-0.5)])
    async with make_engine() as engine:
        answers = [await read(engine, replace(ask(json_grammar(SCHEMA), seed), mix=mix)) for seed in range(4)]
    for text, finished in answers:
        Draft202012Validator(SCHEMA).validate(json.loads(text))
        assert (finished.reason, finished.stop) == ("stop", None)


async def test_the_state_at_the_end_has_taken_in_the_whole_text() -> None:
    async with make_engine() as engine:
        text, finished = await read(engine, ask(Grammar("regex", "[ab]{5}"), keep_end=True))
    assert finished.end is not None
    assert (finished.reason, finished.end.tokens) == ("stop", (1, *TOKENIZER.encode(text)))


async def test_forced_tokens_are_run_together_and_scored() -> None:
    async with make_engine() as engine:
        grammar = Grammar("regex", "[ab]forced text[ab]")
        events = [event async for event in engine.generate(replace(ask(grammar), logprobs=1))]
        steps = engine.counters().steps
    tokens = [info for event in events if isinstance(event, TextDelta) for info in event.tokens]
    assert b"".join(info.data for info in tokens)[1:-1] == b"forced text"
    assert all(info.logprob is not None and info.logprob < 0 and len(info.top) == 1 for info in tokens)
    assert steps == 2  # the prompt and its first token; the forced ones and the last


async def test_max_tokens_cut_a_text_that_is_right_so_far() -> None:
    async with make_engine() as engine:
        text, finished = await read(engine, ask(json_grammar(SCHEMA), max_tokens=15))
    assert (finished.reason, len(text)) == ("length", 15)
    assert '{"kind": "cat", "ages": ['.startswith(text) or '{"kind": "dog", "ages": ['.startswith(text)


async def test_a_wrong_grammar_is_refused_under_the_name_of_its_field() -> None:
    async with make_engine() as engine:
        for _ in range(2):
            with pytest.raises(
                InvalidRequestError, match=r"(?s)guided_regex: 'a\[' is not allowed; .*unclosed"
            ) as refused:
                await read(engine, ask(Grammar("regex", "a[", "guided_regex")))
            assert refused.value.field == "guided_regex"
        text, _ = await read(engine, ask(Grammar("regex", "a")))
        assert text == "a"


async def test_a_reader_that_leaves_does_not_take_the_grammar_from_others() -> None:
    async with make_engine() as engine:
        grammar = Grammar("regex", "[0-9]{3}")
        async with aclosing(engine.generate(ask(grammar))) as events:
            leaver = asyncio.create_task(anext(events))
            stayer = asyncio.create_task(read(engine, ask(grammar)))
            await asyncio.sleep(0)
            leaver.cancel()
            await asyncio.gather(leaver, return_exceptions=True)
        text, _ = await stayer
        assert len(text) == 3


async def test_an_engine_that_closes_ends_those_that_wait_for_a_grammar() -> None:
    engine = make_engine()
    waiting = [asyncio.create_task(read(engine, ask(Grammar("regex", f"a{n}")))) for n in range(5)]
    await asyncio.sleep(0)
    await engine.close()
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, EngineClosedError)


async def think(engine: Engine, budget: int | None, grammar: Grammar | None, seed: int = 0) -> str:
    """Return the text of a request with thoughts, which `</t>` closes."""
    thinking = Thinking(b"</t>", TOKENIZER.encode("!</t>"), budget)
    text, _ = await read(engine, replace(ask(grammar or Grammar("regex", "")), grammar=grammar, thinking=thinking))
    return text


@pytest.mark.parametrize("budget", [0, 3, 40])
async def test_a_budget_closes_thoughts_and_a_grammar_holds_what_follows(budget: int) -> None:
    async with make_engine() as engine:
        thoughts, _, answer = (await think(engine, budget, Grammar("regex", "[ab]{5}"))).partition("!</t>")
        assert len(thoughts) <= budget
        assert len(answer) == 5
        assert set(answer) <= {"a", "b"}


async def test_thoughts_that_end_by_themselves_need_no_budget() -> None:
    mask = ThinkingMask(Thinking(b"</t>", TOKENIZER.encode("</t>")), TOKENIZER.decode_bytes, TOKENIZER.size, None)
    for token in TOKENIZER.encode("so </t>"):
        assert mask.next() is None
        mask.accept(token)
    assert mask.next() is None
    assert not mask.ended


async def test_without_a_grammar_any_text_follows_the_thoughts() -> None:
    async with make_engine() as engine:
        assert (await think(engine, 2, None))[2:].startswith("!</t>")
