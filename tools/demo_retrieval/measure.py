"""Measure how well questions of the test find their documents, and print a table.

    python -m tools.demo_retrieval.measure

Compares the demo pair, by vectors alone and with its reranker on the nearest documents; the demo model's plain state;
and BM25 on words, which needs rank-bm25. One document among those of all facts answers a question. So recall@5 is how
often it is among the first five, and nDCG@10 is the mean of 1 / log2(1 + rank), or of 0 for a rank beyond ten.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import click
import numpy as np
from numpy.typing import NDArray

from rnn_engine import LLM
from tools.demo_retrieval.corpus import Question, make_test

_CANDIDATES = 20  # the nearest documents, which are reranked


def show(way: str, kind: str, scores: NDArray[np.float64], questions: Sequence[Question]) -> None:
    """Print how well a way of searching finds the documents of one kind of question."""
    ranks = ranks_in(scores, [question.answer for question in questions])
    gain = np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0).mean()
    click.echo(f"| {way} | {kind} | {gain:.3f} | {(ranks <= 5).mean():.3f} | {len(ranks)} |")


def ranks_in(scores: NDArray[np.float64], answers: Sequence[int]) -> NDArray[np.float64]:
    """Return the rank of each question's answer among the scores [questions, documents]; equal scores share ranks."""
    right = scores[np.arange(len(answers)), answers][:, np.newaxis]
    return 1 + (scores > right).sum(axis=1) + ((scores == right).sum(axis=1) - 1) / 2


def bm25_scores(documents: Sequence[str], questions: Sequence[Question]) -> NDArray[np.float64]:
    """Return BM25's scores [questions, documents]. Words are compared in lower case."""
    from rank_bm25 import BM25Okapi  # not among the packages of the tests, which use the other functions

    index = BM25Okapi([_words(document) for document in documents])
    return np.stack([index.get_scores(_words(question.text)) for question in questions])


def vector_scores(llm: LLM, documents: Sequence[str], questions: Sequence[Question]) -> NDArray[np.float64]:
    """Return the cosines [questions, documents] of the model's vectors."""
    vectors = llm.embed([*documents, *(question.text for question in questions)]).astype(np.float64)
    stored, asked = np.split(vectors, [len(documents)])
    return asked @ stored.T


def reranked(
    llm: LLM, documents: Sequence[str], questions: Sequence[Question], similar: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the cosines `similar` [questions, documents] with a reranker's scores in place of the greatest ones.

    A reranker's score is at least 0. The other cosines are lowered below that.
    """
    scores = similar - 2
    for row, question in enumerate(questions):
        nearest = np.argsort(-similar[row])[:_CANDIDATES]
        for found in llm.rerank(question.text, [documents[number] for number in nearest]):
            scores[row, nearest[found.index]] = found.score
    return scores


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@click.command()
@click.option("--every", default=1, show_default=True, help="Take each N-th question alone, which is faster.")
@click.option("--device", default="0", show_default=True, help="The engine's device.")
@click.option(
    "--weights", multiple=True, default=["f16"], show_default=True, help="Formats of the demo pair's weights."
)
def main(every: int, device: str, weights: Sequence[str]) -> None:
    """Print the figures of each way of searching for each kind of question."""
    click.echo("| way | questions | nDCG@10 | recall@5 | number |\n|---|---|---|---|---|")
    test = make_test()
    documents = test.documents
    kinds = {kind: questions[::every] for kind, questions in test.kinds.items()}
    for kind, questions in kinds.items():
        show("BM25", kind, bm25_scores(documents, questions), questions)
    with LLM("demo", device=device, num_slots=32) as llm:
        for kind, questions in kinds.items():
            show("state of `demo`", kind, vector_scores(llm, documents, questions), questions)
    for chosen in weights:
        with LLM("demo-embed", device=device, weights=chosen, num_slots=32) as llm:
            for kind, questions in kinds.items():
                similar = vector_scores(llm, documents, questions)
                show(f"`demo-embed` in {chosen}, vectors", kind, similar, questions)
                ranked = reranked(llm, documents, questions, similar)
                show(f"`demo-embed` in {chosen}, reranked", kind, ranked, questions)


if __name__ == "__main__":
    main()
