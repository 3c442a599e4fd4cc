"""Train the demo's embedding model on the small world, and then its reranker. Both runs can be resumed.

    python -m tools.demo_retrieval.train --run build/demo-retrieval
    python -m tools.demo_retrieval.train --run build/demo-retrieval --reranker

Each step takes facts at random. Among the documents of the step, a question's vector must be nearest to that of the
document that answers it. In the head for similarity the same holds for two wordings of a question, and the vectors of
the head for classification must show the topic.

With the reranker, the embedding model learns from its own loss and the reranker's, so that its states show if a
document answers a question. Documents come in groups of four. A question is put behind each document of its group: the
right one, one about the same subject, one in the same relation, and one that shares neither.
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
from tools.demo_model.train import CHECKPOINT, Run, set_progress, train
from tools.demo_retrieval.corpus import close_facts, document_part, facts, query_part, training_facts
from tools.demo_retrieval.model import Embedding, Reranker
from tools.demo_retrieval.vocabulary import Encoder, build

FACTS = 96  # of a step
SPELT = 0.08  # of the words, in all texts of a step
TEMPERATURE = 0.05
TOKENIZER = "tokenizer.json"  # a file of a run
PAIR = "pair"  # the folder of the second run in that of the first
GROUPS, DOCUMENTS = 12, 4  # of a step, and of a group
ASKED = 2  # questions about each document
OTHERS = 2  # documents of other groups for each question
LEFT_OUT = 0.15  # of the words of a question's wording, with the reranker
RERANKER_RATE = 0.5  # times the learning rates of the optimisers, for both models
_TOPICS = sorted({fact.topic for fact in facts()})


class Trainer(Run):
    """A training run of the embedding model, or of both models."""

    def __init__(self, tokenizer: Tokenizer, *, with_reranker: bool) -> None:
        sizes = sizes_for(tokenizer)
        self.encode = Encoder(tokenizer)
        self.embedding, self.reranker = Embedding(sizes).train(), Reranker(sizes)
        self.topics = nn.Linear(sizes.width, len(_TOPICS), bias=False)  # reads the classification vectors
        models = {"embedding": self.embedding, "topics": self.topics, "reranker": self.reranker}
        super().__init__(nn.ModuleDict(models))
        self.with_reranker = with_reranker

    def step(self, factor: float) -> float:
        """Take one optimiser step at `factor` times the full learning rate. Return the loss of what is learnt new."""
        rng = random.Random(f"{self.with_reranker} {self.steps_done}")
        loss = loss_of(self.scores(rng)) if self.with_reranker else self.loss(rng)
        (loss + self.loss(rng) if self.with_reranker else loss).backward()
        for model in (self.embedding, self.reranker):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        set_progress(self.optimizers, RERANKER_RATE * factor if self.with_reranker else factor)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.steps_done += 1
        return loss.item()

    def loss(self, rng: random.Random) -> Tensor:
        """Return the embedding model's loss for some facts that `rng` chooses."""
        chosen = rng.sample(training_facts(), FACTS)
        documents, queries, others = (
            [fact.document(rng) for fact in chosen],
            *([fact.careless_query(rng) for fact in chosen] for _ in range(2)),
        )
        spelt = self.encode.some_words(rng, SPELT)
        features = self.embedding.features([self.encode(text, spelt) for text in (*documents, *queries, *others)])
        document_vectors, query_vectors, _ = self.embedding.vectors(features, "retr").chunk(3)
        similar = query_vectors @ document_vectors.T / TEMPERATURE  # [Q, D]
        _, one, other = self.embedding.vectors(features, "sts").chunk(3)
        topics = torch.tensor([_TOPICS.index(fact.topic) for fact in chosen] * 3)
        shown = self.topics(self.embedding.vectors(features, "cls")) / TEMPERATURE
        return _nearest(similar) + 0.3 * _nearest(one @ other.T / TEMPERATURE) + 0.1 * F.cross_entropy(shown, topics)

    def scores(self, rng: random.Random) -> Tensor:
        """Return the log-odds [questions, DOCUMENTS + OTHERS] for questions about groups and their documents.

        The questions of a group are in the order of the documents that answer them, ASKED for each. The documents are
        those of the group, and then one of each of the next OTHERS groups.
        """
        groups = [close_facts(rng) for _ in range(GROUPS)]
        documents = [document_part(fact.document(rng)) for group in groups for fact in group]
        asked = [
            [query_part(fact.careless_query(rng, LEFT_OUT)) for _ in range(ASKED)] for group in groups for fact in group
        ]
        queries: list[str] = []
        for number in range(len(documents)):
            first = number - number % DOCUMENTS  # of the group
            about = [*range(first, first + DOCUMENTS), *(number - DOCUMENTS * (1 + other) for other in range(OTHERS))]
            queries += [query for each in about for query in asked[each]]
        spelt = self.encode.some_words(rng, SPELT)
        after = self.embedding.states([self.encode(text, spelt, ends=False) for text in documents])
        pairs = self.embedding.states(
            [self.encode(text, spelt) for text in queries],
            [layer.repeated((DOCUMENTS + OTHERS) * ASKED) for layer in after],
        )
        scores = self.reranker([layer.wkv for layer in pairs]).view(GROUPS, DOCUMENTS, DOCUMENTS + OTHERS, ASKED)
        own, others = scores.split([DOCUMENTS, OTHERS], 2)  # [groups, documents, questions about, asked]
        found = [own.permute(0, 2, 3, 1).flatten(0, 2)]
        for other in range(OTHERS):
            found.append(others[:, :, other].roll(-1 - other, 0).flatten()[:, None])
        return torch.cat(found, 1)


def sizes_for(tokenizer: Tokenizer) -> Sizes:
    """Return the sizes of the embedding model; the reranker has the same ones, and a vocabulary of one token."""
    return Sizes(tokenizer.get_vocab_size(), width=96, layers=3, head=32, ffn=192, rank=12, gate_rank=16)


def loss_of(scores: Tensor) -> Tensor:
    """Return the loss of the scores that `Trainer.scores` returns: of each alone, and of a question's order."""
    right = torch.arange(DOCUMENTS).repeat_interleave(ASKED).repeat(GROUPS)
    each = F.binary_cross_entropy_with_logits(scores, F.one_hot(right, DOCUMENTS + OTHERS).float())
    return each + F.cross_entropy(scores, right)


def _nearest(similar: Tensor) -> Tensor:
    """Return the loss of the wrong ones being near: row i's right column is i, and column i's right row."""
    right = torch.arange(len(similar))
    return (F.cross_entropy(similar, right) + F.cross_entropy(similar.T, right)) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run; a run in it is resumed")
    parser.add_argument("--reranker", action="store_true", help="train both models, after the first run")
    options = parser.parse_args()
    folder: Path = options.run / PAIR if options.reranker else options.run
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build()
    tokenizer.save(str(options.run / TOKENIZER))
    torch.manual_seed(0)
    trainer = Trainer(tokenizer, with_reranker=options.reranker)
    if (folder / CHECKPOINT).exists():
        trainer.resume(torch.load(folder / CHECKPOINT, weights_only=True))
    elif options.reranker:
        trainer.model.load_state_dict(torch.load(options.run / CHECKPOINT, weights_only=True)["model"])
    steps, cooldown = (1300, 1300) if options.reranker else (400, 100)
    train(trainer, folder, 0, steps, cooldown)


if __name__ == "__main__":
    main()
