"""Train the demo's reranker on the states of the trained embedding model, and then both together.

    python -m tools.demo_retrieval.train_reranker build/demo-retrieval

First the embedding model stays as it is, so the states after pairs of a document and a question are computed once. Then
it learns with the reranker, from the same loss and its own, so that its states show better if a document answers a
question. Each question has a document that answers it, and two that don't, mostly about the same subject or in the same
relation.
"""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tools.demo_model.optimizer import optimizers, set_progress
from tools.demo_model.train import CHECKPOINT, rate_factor
from tools.demo_retrieval.corpus import Fact, pair_text, training_facts
from tools.demo_retrieval.model import Embedding, Reranker
from tools.demo_retrieval.train import SPELT, TOKENIZER, Trainer, sizes_for
from tools.demo_retrieval.vocabulary import Encoder

QUERIES, OF_STEP = 10_000, 96  # questions in all, and of a step, while the embedding model stays
DOCUMENTS = 3  # for each question, of which the first one answers it
HARD = 0.7  # of the wrong documents are close to the right one
STEPS, COOLDOWN = 500, 200
STEPS_TOGETHER, OF_STEP_TOGETHER = 450, 48
RATE = 0.5  # times the learning rates of optimizer.py
SEED = 31
PAIR = "pair.pt"  # the file of a run
_AT_A_TIME = 96  # texts


def make_pairs(queries: int, rng: random.Random) -> list[str]:
    """Return the texts of DOCUMENTS pairs for each of some questions. The first has the document that answers it."""
    known = training_facts()
    texts = []
    for _ in range(queries):
        fact = rng.choice(known)
        query = fact.careless_query(rng)
        close = [other for other in known if _are_close(fact, other)]
        others = [other for other in known if other is not fact]
        wrong = [rng.choice(close if rng.random() < HARD else others) for _ in range(DOCUMENTS - 1)]
        texts += [pair_text(stated.document(rng), query) for stated in (fact, *wrong)]
    return texts


def _are_close(one: Fact, other: Fact) -> bool:
    same_relation = (one.topic, one.relation) == (other.topic, other.relation)
    return one is not other and (same_relation or one.names == other.names)


def states_after(embedding: Embedding, texts: list[list[int]]) -> Tensor:
    """Return the states of all layers after texts, in f16. Returns [L, texts, H, value, key]"""
    with torch.no_grad():
        parts = [
            torch.stack(embedding.states(texts[first : first + _AT_A_TIME])).half()
            for first in range(0, len(texts), _AT_A_TIME)
        ]
    return torch.cat(parts, 1)


def train_reranker(reranker: Reranker, states: Tensor) -> None:
    """Train the reranker on states [L, questions * DOCUMENTS, H, value, key]; each question's first has the score 1."""
    made = optimizers(reranker)
    for step in range(STEPS):
        questions = torch.randint(QUERIES, (OF_STEP, 1))
        chosen = (questions * DOCUMENTS + torch.arange(DOCUMENTS)).flatten()
        loss = _loss(reranker([layer[chosen].float() for layer in states]))
        _update(made, loss, rate_factor(step, STEPS, COOLDOWN))
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)


def train_together(trainer: Trainer, reranker: Reranker) -> None:
    """Train the reranker and the embedding model of `trainer` together."""
    embedding = trainer.model.train()
    made = [*optimizers(embedding), *optimizers(reranker)]
    for step in range(STEPS_TOGETHER):
        rng = random.Random(f"together {step}")
        texts = [trainer.encode(text, rng, SPELT) for text in make_pairs(OF_STEP_TOGETHER, rng)]
        loss = _loss(reranker(embedding.states(texts)))
        _update(made, loss + trainer.loss(rng), rate_factor(step, STEPS_TOGETHER, STEPS_TOGETHER))
        if (step + 1) % 10 == 0:
            print(f"together, step {step + 1}: loss {loss.item():.4f}", flush=True)


def _loss(scores: Tensor) -> Tensor:
    """Return the loss of scores [questions * DOCUMENTS]."""
    answers = torch.zeros(len(scores) // DOCUMENTS, DOCUMENTS)
    answers[:, 0] = 1
    return F.binary_cross_entropy_with_logits(scores, answers.flatten())


def _update(made: list[torch.optim.Optimizer], loss: Tensor, factor: float) -> None:
    for optimizer in made:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in made:
        for group in optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 1.0)
    set_progress(made, RATE * factor)
    for optimizer in made:
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run of tools.demo_retrieval.train, which is done")
    run: Path = parser.parse_args().run
    tokenizer = Tokenizer.from_file(str(run / TOKENIZER))
    torch.manual_seed(0)
    trainer = Trainer(Embedding(sizes_for(tokenizer)), Encoder(tokenizer))
    trainer.resume(run / CHECKPOINT)
    reranker = Reranker(trainer.model.rwkv.sizes)
    rng = random.Random(SEED)
    texts = [trainer.encode(text, rng, SPELT) for text in make_pairs(QUERIES, rng)]
    train_reranker(reranker, states_after(trainer.model.eval(), texts))
    train_together(trainer, reranker)
    torch.save({"embedding": trainer.model.state_dict(), "reranker": reranker.state_dict()}, run / PAIR)


if __name__ == "__main__":
    main()
