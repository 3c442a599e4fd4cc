"""`python -m tools.bench.retrieval_torch`: search documents with the package rwkv-emb on torch, from kept states.

`tools.bench.retrieval` runs it with a Python that has torch and the package. It reads a `Task` as JSON from stdin, and
prints an `Outcome` as JSON. The package computes in f32 on the CPU, changed as for the golden files. Its own kernel
needs CUDA, so each token of a recurrence is a few operations of torch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_AT_A_TIME = 16  # documents


@dataclass(frozen=True, slots=True)
class Task:
    """A pair of models as .pth, and what to search: all texts are tokens."""

    embedding: str
    reranker: str
    documents: Sequence[list[int]]  # with the end of a sentence
    begins: Sequence[list[int]]  # what all pairs with each document begin with
    queries: Sequence[list[int]]  # with the end of a sentence
    asked: Sequence[list[int]]  # what each query's pairs end with
    candidates: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The nearest documents of each query with their scores from 0 to 1, and the times."""

    found: Sequence[dict[str, float]]  # the number of a document -> its score
    adding: tuple[float, float]  # seconds by the clock, and of all processors together
    seconds: Sequence[tuple[float, float]]  # of each query, likewise


def now() -> tuple[float, float]:
    """Return the times by the clock and of all processors together."""
    return time.perf_counter(), time.process_time()


def since(begun: tuple[float, float]) -> tuple[float, float]:
    """Return the seconds by the clock and of all processors since `begun`."""
    clock, processors = now()
    return clock - begun[0], processors - begun[1]


def run(task: Task) -> Outcome:
    """Run the documents of a task and keep their vectors and states, then ask its queries from these."""
    import torch
    from torch.nn import functional as F  # noqa: N812

    from tools.golden.retrieval import copy_in_f32, load_package

    package = load_package()
    with TemporaryDirectory() as name:
        model, reranking = (copy_in_f32(Path(file), Path(name)) for file in (task.embedding, task.reranker))
        embedding, reranker = package.EmbeddingRWKV(str(model)), package.RWKVReRanker(str(reranking))
        begun = now()
        vectors, _ = _run_all(embedding, task.documents)
        _, (shifts, wkvs) = _run_all(embedding, task.begins)
        adding = since(begun)
        found, seconds = [], []
        for query, asked in zip(task.queries, task.asked, strict=True):
            begun = now()
            vector, _ = embedding.forward(query, None, False)
            nearest = F.cosine_similarity(vector, vectors).topk(task.candidates).indices
            state = [shifts[:, :, nearest], wkvs[:, nearest]]
            embedding.forward([asked] * len(nearest), state, False)
            scores = torch.sigmoid(reranker(state[1]))
            seconds.append(since(begun))
            found.append({str(number): score for number, score in zip(nearest.tolist(), scores.tolist(), strict=True)})
    return Outcome(found, adding, seconds)


def _run_all(embedding: Any, texts: Sequence[list[int]]) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # noqa: ANN401
    """Return the vectors [n, D] of texts, and the states after them: the shifts [L, 2, n, D], wkv [L, n, H, N, N]."""
    import torch

    parts = [
        embedding.forward(list(texts[first : first + _AT_A_TIME]), None, False)
        for first in range(0, len(texts), _AT_A_TIME)
    ]
    vectors = torch.cat([vector for vector, _ in parts])
    return vectors, (torch.cat([state[0] for _, state in parts], 2), torch.cat([state[1] for _, state in parts], 1))


if __name__ == "__main__":
    print(json.dumps(asdict(run(Task(**json.load(sys.stdin))))))
