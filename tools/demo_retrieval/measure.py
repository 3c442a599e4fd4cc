"""Measure how well questions of the test find their documents, and print a table.

    python -m tools.demo_retrieval.measure

Compares the demo pair, by vectors alone and with its reranker on the nearest documents; the demo model's plain state;
and BM25 on words, which needs rank-bm25. One document among those of all facts answers a question. So recall@5 is how
often it is among the first five, and nDCG@10 is the mean of 1 / log2(1 + rank), or of 0 for a rank beyond ten.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rnn_engine import LLM
from tools.demo_retrieval.corpus import Question, make_test

_CANDIDATES = 20  # the nearest documents, which are reranked


@dataclass(frozen=True, slots=True)
class Figures:
    """How well one way of searching finds the documents of one kind of question."""

    way: str
    kind: str
    ndcg: float
    recall: float
    questions: int

    @classmethod
    def of(cls, way: str, kind: str, ranks: NDArray[np.float64]) -> Figures:
        """Return the figures for the ranks of the right documents, from 1 on."""
        gains = np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0)
        return cls(way, kind, float(gains.mean()), float((ranks <= 5).mean()), len(ranks))

    def __str__(self) -> str:
        return f"| {self.way} | {self.kind} | {self.ndcg:.3f} | {self.recall:.3f} | {self.questions} |"


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


def measure(every: int, device: str, weights: Sequence[str]) -> Iterator[Figures]:
    """Yield the figures of each way of searching for each kind of question, with each `every`-th question.

    The demo pair is measured with each format of `weights`.
    """
    test = make_test()
    documents = test.documents
    kinds = {kind: questions[::every] for kind, questions in test.kinds.items()}
    for kind, questions in kinds.items():
        answers = [question.answer for question in questions]
        yield Figures.of("BM25", kind, ranks_in(bm25_scores(documents, questions), answers))
    with LLM("demo", device=device, num_slots=32) as llm:
        for kind, questions in kinds.items():
            answers = [question.answer for question in questions]
            yield Figures.of("state of `demo`", kind, ranks_in(vector_scores(llm, documents, questions), answers))
    for chosen in weights:
        with LLM("demo-embed", device=device, weights=chosen, num_slots=32) as llm:
            for kind, questions in kinds.items():
                answers = [question.answer for question in questions]
                similar = vector_scores(llm, documents, questions)
                yield Figures.of(f"`demo-embed` in {chosen}, vectors", kind, ranks_in(similar, answers))
                scores = reranked(llm, documents, questions, similar)
                yield Figures.of(f"`demo-embed` in {chosen}, reranked", kind, ranks_in(scores, answers))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="take each N-th question alone, which is faster")
    parser.add_argument("--device", default="0", help="the engine's device")
    parser.add_argument("--weights", nargs="+", default=["f16"], help="formats of the demo pair's weights")
    options = parser.parse_args()
    print("| way | questions | nDCG@10 | recall@5 | number |\n|---|---|---|---|---|")
    for figures in measure(options.every, options.device, options.weights):
        print(figures, flush=True)


if __name__ == "__main__":
    main()
