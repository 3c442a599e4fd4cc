"""Train the demo's embedding model on the small world. A run can be resumed.

    python -m tools.demo_retrieval.train --run build/demo-retrieval

Each step takes facts at random. Among the documents of the step, a question's vector must be nearest to that of the
document that answers it. In the head for similarity the same holds for two wordings of a question, and the vectors of
the head for classification must show the topic.
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

from tools.demo_model.model import Sizes
from tools.demo_model.optimizer import optimizers, set_progress
from tools.demo_model.train import CHECKPOINT, save_whole, train
from tools.demo_retrieval.corpus import facts, training_facts
from tools.demo_retrieval.model import Embedding
from tools.demo_retrieval.vocabulary import Encoder, build

FACTS = 96  # of a step
SPELT = 0.08  # of the words, in all texts of a step
TEMPERATURE = 0.05
TOKENIZER = "tokenizer.json"  # a file of a run
_TOPICS = sorted({fact.topic for fact in facts()})


class Trainer:
    """The state of a training run: the model, its optimisers, and the number of steps done."""

    def __init__(self, model: Embedding, encode: Encoder) -> None:
        self.model, self.encode = model, encode
        width = model.rwkv.sizes.width
        self.topics = nn.Linear(width, len(_TOPICS), bias=False)  # reads the classification vectors in training alone
        self.optimizers = optimizers(nn.ModuleList([model, self.topics]))
        self.steps_done = 0

    def step(self, factor: float) -> float:
        """Take one optimiser step at `factor` times the full learning rate. Return the loss."""
        loss = self.loss(random.Random(self.steps_done))
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        set_progress(self.optimizers, factor)
        for optimizer in self.optimizers:
            optimizer.step()
        self.steps_done += 1
        return loss.item()

    def loss(self, rng: random.Random) -> Tensor:
        """Return the loss for some facts that `rng` chooses."""
        chosen = rng.sample(training_facts(), FACTS)
        documents, queries, others = (
            [fact.document(rng) for fact in chosen],
            *([fact.careless_query(rng) for fact in chosen] for _ in range(2)),
        )
        spelt = self.encode.some_words(rng, SPELT)
        features = self.model.features([self.encode(text, spelt) for text in (*documents, *queries, *others)])
        document_vectors, query_vectors, _ = self.model.vectors(features, "retr").chunk(3)
        similar = query_vectors @ document_vectors.T / TEMPERATURE  # [Q, D]
        _, one, other = self.model.vectors(features, "sts").chunk(3)
        topics = torch.tensor([_TOPICS.index(fact.topic) for fact in chosen] * 3)
        shown = self.topics(self.model.vectors(features, "cls")) / TEMPERATURE
        return _nearest(similar) + 0.3 * _nearest(one @ other.T / TEMPERATURE) + 0.1 * F.cross_entropy(shown, topics)

    def save(self, path: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "topics": self.topics.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "steps_done": self.steps_done,
        }
        save_whole(state, path)

    def resume(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.topics.load_state_dict(state["topics"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.steps_done = state["steps_done"]


def sizes_for(tokenizer: Tokenizer) -> Sizes:
    """Return the sizes of the embedding model; the reranker has the same ones, and a vocabulary of one token."""
    return Sizes(tokenizer.get_vocab_size(), width=96, layers=3, head=32, ffn=192, rank=12, gate_rank=16)


def _nearest(similar: Tensor) -> Tensor:
    """Return the loss of the wrong ones being near: row i's right column is i, and column i's right row."""
    right = torch.arange(len(similar))
    return (F.cross_entropy(similar, right) + F.cross_entropy(similar.T, right)) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run; a run in it is resumed")
    parser.add_argument("--steps", type=int, default=400, help="steps in all, including those before a resume")
    parser.add_argument("--cooldown", type=int, default=100, help="how many of the last steps lower the learning rate")
    options = parser.parse_args()
    options.run.mkdir(parents=True, exist_ok=True)
    tokenizer = build()
    tokenizer.save(str(options.run / TOKENIZER))
    torch.manual_seed(0)
    trainer = Trainer(Embedding(sizes_for(tokenizer)), Encoder(tokenizer))
    checkpoint = options.run / CHECKPOINT
    if checkpoint.exists():
        trainer.resume(checkpoint)
    train(trainer, options.run, 0, options.steps, options.cooldown)


if __name__ == "__main__":
    main()
