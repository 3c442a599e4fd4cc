"""The demo pair that ships: its files fit, it is loaded by name, and it answers questions that it was not trained on.

Runs the numpy reference.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rnn_engine import LLM
from rnn_engine.demo import embedding_path, find_reranker, model_path
from rnn_engine.hub import locate_model
from rnn_engine.operations.embedding import end_of_sentence
from rnn_engine.operations.relevance import relevance_prompts
from rnn_engine.tokenizer import load_tokenizer
from tools.demo_retrieval.corpus import facts, make_test, pair_text
from tools.demo_retrieval.measure import ranks_in, vector_scores

MEGABYTE = 1_000_000
TOPICS = ("shops", "animals")  # those whose documents are searched here
EVERY = 4  # of the questions, one is asked


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo-embed", device="cpu") as loaded:
        yield loaded


def test_the_files_are_small_and_found_by_name() -> None:
    assert locate_model("demo-embed") == embedding_path()
    reranker = find_reranker(embedding_path())
    assert reranker is not None
    assert embedding_path().stat().st_size + reranker.stat().st_size < 4 * MEGABYTE
    assert find_reranker(model_path()) is None


def test_the_reranker_is_loaded_with_the_model(llm: LLM) -> None:
    embedding = llm.engine.info.embedding
    assert embedding is not None
    assert embedding.reranker == "demo-rerank"


def test_prompts_have_the_text_and_tokens_of_the_training(llm: LLM) -> None:
    shape = llm.engine.info.shape
    tokenizer = load_tokenizer("auto", embedding_path(), shape.vocab_size)
    [prompt] = relevance_prompts(llm.engine, [("When does the bakery open?", "The bakery opens at six.")])
    text = pair_text("The bakery opens at six.", "When does the bakery open?")
    assert prompt.text == text
    assert list(prompt.tokens) == [*tokenizer.encode(text), end_of_sentence(shape)]


def test_vectors_find_the_documents_of_unseen_questions(llm: LLM) -> None:
    test = make_test()
    own = [number for number, fact in enumerate(facts()) if fact.topic in TOPICS]
    questions = [q for kind in test.kinds.values() for q in kind if q.answer in own][::EVERY]
    scores = vector_scores(llm, [test.documents[number] for number in own], questions)
    ranks = ranks_in(scores, [own.index(question.answer) for question in questions])
    assert (ranks == 1).mean() > 0.8


def test_the_reranker_prefers_the_answer(llm: LLM) -> None:
    right = "The bank is in Market Square."
    others = ["The bank opens at half past eight.", "The chemist is in Station Road.", "A frog eats flies."]
    assert llm.rerank("Where must I look for the savings bank?", [*others, right])[0].text == right
