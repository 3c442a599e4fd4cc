"""Train the demo's reranker together with its embedding model, which was trained alone before. A run can be resumed.

    python -m tools.demo_retrieval.train_reranker build/demo-retrieval

The embedding model learns from its own loss and the reranker's, so that its states show if a document answers a
question. Documents come in groups of four. A question is put behind each document of its group: the right one, one
about the same subject, one in the same relation, and one that shares neither.
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
from tools.demo_model.train import CHECKPOINT, save_whole, train
from tools.demo_retrieval.corpus import close_facts, document_part, query_part
from tools.demo_retrieval.model import Embedding, Reranker
from tools.demo_retrieval.train import SPELT, TOKENIZER, Trainer, sizes_for
from tools.demo_retrieval.vocabulary import Encoder

GROUPS, DOCUMENTS = 12, 4  # of a step, and of a group
ASKED = 2  # questions about each document
OTHERS = 2  # documents of other groups for each question
LEFT_OUT = 0.15  # of the words of a question's wording
RATE = 0.5  # times the learning rates of optimizer.py
PAIR = "pair"  # the folder in that of the run


class PairTrainer:
    """The state of a training run of both models: these, their optimisers, and the number of steps done."""

    def __init__(self, embedding: Trainer) -> None:
        self.embedding = embedding
        self.model = embedding.model.train()
        self.reranker = Reranker(self.model.rwkv.sizes)
        self.models = nn.ModuleDict({"embedding": self.model, "reranker": self.reranker})
        self.optimizers = [each for model in self.models.values() for each in optimizers(model)]
        self.steps_done = 0

    def step(self, factor: float) -> float:
        """Take one optimiser step at `factor` times the full learning rate. Return the reranker's loss."""
        rng = random.Random(f"pair {self.steps_done}")
        loss = loss_of(self.scores(rng))
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        (loss + self.embedding.loss(rng)).backward()
        for model in self.models.values():
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        set_progress(self.optimizers, RATE * factor)
        for optimizer in self.optimizers:
            optimizer.step()
        self.steps_done += 1
        return loss.item()

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
        encode = self.embedding.encode
        spelt = encode.some_words(rng, SPELT)
        after = self.model.states([encode(text, spelt, ends=False) for text in documents])
        pairs = self.model.states(
            [encode(text, spelt) for text in queries],
            [layer.repeated((DOCUMENTS + OTHERS) * ASKED) for layer in after],
        )
        scores = self.reranker([layer.wkv for layer in pairs]).view(GROUPS, DOCUMENTS, DOCUMENTS + OTHERS, ASKED)
        own, others = scores.split([DOCUMENTS, OTHERS], 2)  # [groups, documents, questions about, asked]
        found = [own.permute(0, 2, 3, 1).flatten(0, 2)]
        for other in range(OTHERS):
            found.append(others[:, :, other].roll(-1 - other, 0).flatten()[:, None])
        return torch.cat(found, 1)

    def save(self, path: Path) -> None:
        state = {
            "models": self.models.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "steps_done": self.steps_done,
        }
        save_whole(state, path)

    def resume(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.models.load_state_dict(state["models"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.steps_done = state["steps_done"]


def loss_of(scores: Tensor) -> Tensor:
    """Return the loss of the scores that `PairTrainer.scores` returns: of each alone, and of a question's order."""
    right = torch.arange(DOCUMENTS).repeat_interleave(ASKED).repeat(GROUPS)
    each = F.binary_cross_entropy_with_logits(scores, F.one_hot(right, DOCUMENTS + OTHERS).float())
    return each + F.cross_entropy(scores, right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run of tools.demo_retrieval.train, which is done")
    parser.add_argument("--steps", type=int, default=1300, help="steps in all, including those before a resume")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.run / TOKENIZER))
    torch.manual_seed(0)
    embedding = Trainer(Embedding(sizes_for(tokenizer)), Encoder(tokenizer))
    trainer = PairTrainer(embedding)
    folder = options.run / PAIR
    folder.mkdir(exist_ok=True)
    if (folder / CHECKPOINT).exists():
        trainer.resume(folder / CHECKPOINT)
    else:
        embedding.resume(options.run / CHECKPOINT)
    train(trainer, folder, 0, options.steps, options.steps)


if __name__ == "__main__":
    main()
