"""The relevance of documents: the prompts that ask for it, figures by hand, and the demo model's."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from rnn_engine.cli.session import load_engine
from rnn_engine.interface import EngineLike
from rnn_engine.operations.embedding import run_states
from rnn_engine.operations.parallel import Cost
from rnn_engine.operations.relevance import (
    Relevance,
    document_tokens,
    method,
    num_prompt_tokens,
    relevance_prompts,
    score_relevance,
)
from rnn_engine.requests import GenerateRequest
from rnn_engine.types import InitialState
from tests.support.demo_server import demo_choice
from tests.support.fake_engine import FakeEngine, encode

ASKED = "Query: a?\nDocument: It is b.\nDoes the document answer the query: a?\nAnswer Yes or No."


@pytest.fixture
async def demo() -> AsyncIterator[EngineLike]:
    engine = await load_engine(demo_choice())
    yield engine
    await engine.close()


def test_a_prompt_asks_after_examples() -> None:
    [prompt] = relevance_prompts(FakeEngine(), [("a?", "It is\n\nb.")])
    *examples, question, ending = prompt.text.split("\n\n")
    assert question.removeprefix("User: ") == ASKED.replace("is b", "is\nb")
    assert ending == "Assistant:"
    assert [record.partition(":")[0] for record in examples] == ["User", "Assistant"] * 2
    assert [record for record in examples if record.startswith("Assistant")] == ["Assistant: Yes", "Assistant: No"]


def test_examples_are_not_counted() -> None:
    engine = FakeEngine()
    short, long = relevance_prompts(engine, [("a?", "b"), ("a?", "bcd")])
    assert num_prompt_tokens([long]) - num_prompt_tokens([short]) == 2
    assert num_prompt_tokens([short, long]) < len(long.tokens)


async def test_both_answers_are_scored_after_each_document() -> None:
    """The fake engine gives token t the log-probability -t / 100."""
    engine = FakeEngine()
    prompts = relevance_prompts(engine, [("a?", "b"), ("a?", "c")])
    found = await score_relevance(engine, prompts)
    scored = [bytes(engine.detokenize(request.prompt)).decode() for request in engine.requests]
    assert scored == [prompt.text + answer for prompt in prompts for answer in (" Yes", " No")]
    odds = (sum(encode(" No")) - sum(encode(" Yes"))) / 100
    assert [each.log_odds for each in found] == [pytest.approx(odds)] * 2
    assert found[0].score == pytest.approx(1 / (1 + math.exp(-odds)))
    assert found[0].cost == Cost(len(prompts[0].tokens) + len(" Yes No"), 0)


async def test_the_state_after_the_examples_is_kept() -> None:
    engine = FakeEngine()
    prompts = relevance_prompts(engine, [("a?", "b"), ("c?", "d")])
    await score_relevance(engine, prompts)
    [kept] = {tuple(request.checkpoint_positions) for request in engine.requests}
    [position] = kept
    assert len({tuple(prompt.tokens[:position]) for prompt in prompts}) == 1
    assert prompts[0].text[position:].startswith("User: Query: a?")


@pytest.mark.parametrize("log_odds", [0.0, 1.0, -1.0, 5000.0, -5000.0])
def test_scores_are_from_0_to_1(log_odds: float) -> None:
    score = Relevance(log_odds, Cost(0, 0)).score
    assert 0 <= score <= 1
    assert (score > 0.5) == (log_odds > 0)
    assert score + Relevance(-log_odds, Cost(0, 0)).score == pytest.approx(1)


async def test_documents_share_what_comes_before_them(demo: EngineLike) -> None:
    documents = ["The capital of France is Paris.", "A cat has four legs.", "Blue is a colour."]
    pairs = [("What is the capital of France?", document) for document in documents]
    prompts = relevance_prompts(demo, pairs)
    found = await score_relevance(demo, prompts)
    assert all(0 < each.score < 1 for each in found)
    [kept] = [demo.tokenize(prompts[0].text[: prompts[0].text.index(documents[0])].rstrip())]
    assert all(each.cost.cached_tokens >= len(kept) - 1 for each in found[1:])
    again = await score_relevance(demo, prompts[:1])
    assert again[0].cost.cached_tokens >= len(prompts[0].tokens) - 1  # its last logits are needed
    assert again[0].log_odds == pytest.approx(found[0].log_odds, abs=1e-3)


async def test_it_is_what_the_model_gives_to_the_answers(demo: EngineLike) -> None:
    """Compared with the probabilities of the first tokens of the answers, which differ."""
    [prompt] = relevance_prompts(demo, [("Is the sky blue?", "The sky is blue.")])
    [found] = await score_relevance(demo, [prompt])
    logprobs = []
    for answer in (" Yes", " No"):
        tokens = demo.tokenize(answer)
        request = GenerateRequest((*prompt.tokens, *tokens), max_tokens=0, logprobs=0, score_from=len(prompt.tokens))
        scored = [event async for event in demo.generate(request)]
        [tokens_scored] = [event.tokens for event in scored if hasattr(event, "tokens")]
        logprobs.append(sum(info.logprob or 0 for info in tokens_scored))
    assert found.log_odds == pytest.approx(logprobs[0] - logprobs[1], abs=1e-2)


@pytest.mark.parametrize("document", ["b", "It is\n\nb. ", "Query: c\nAnswer Yes"])
def test_prompts_about_a_document_begin_alike(document: str) -> None:
    engine = FakeEngine()
    queries = ["a?", "\nQuery: d", "?"]
    begins = list(document_tokens(engine, document))
    prompts = relevance_prompts(engine, [(query, document) for query in queries], document_first=True)
    assert [list(prompt.tokens[: prompt.num_document]) for prompt in prompts] == [begins] * 3
    read = document.replace("\n\n", "\n")
    assert engine.detokenize(begins).decode().endswith(f"Document: {read}\nQuery:")
    rests = [engine.detokenize(prompt.tokens[len(begins) :]).decode() for prompt in prompts]
    assert [rest.split("\nDoes", 1)[0] for rest in rests] == [" a?", " \nQuery: d", " ?"]


async def test_a_document_that_was_read_is_not_run_again(demo: EngineLike) -> None:
    """Scored from the state after the document, and as a whole by an engine that has not seen it."""
    document = "The capital of France is Paris."
    queries = ["What is the capital of France?", "How many legs has a cat?"]
    prompts = relevance_prompts(demo, [(query, document) for query in queries], document_first=True)
    begins = document_tokens(demo, document)
    [(_, end)] = [each async for each in run_states(demo, [begins])]
    await demo.drop_cache()
    others = [
        replace(prompt, tokens=prompt.tokens[len(begins) :], num_shared=0, num_document=None) for prompt in prompts
    ]
    found = await score_relevance(demo, others, initial_state=InitialState("read", end.state))
    await demo.drop_cache()
    whole = await score_relevance(demo, prompts)
    assert [each.log_odds for each in found] == pytest.approx([each.log_odds for each in whole], abs=1e-2)
    assert [len(begins)] * 2 == [b.cost.prompt_tokens - a.cost.prompt_tokens for a, b in zip(found, whole, strict=True)]


def test_any_model_is_asked_for_yes_or_no() -> None:
    assert method(FakeEngine()) == "yes_no"
