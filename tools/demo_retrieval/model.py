"""An embedding model and its reranker in torch, for training, with the names of EmbeddingRWKV's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tools.demo_model.model import Inputs, Model, Sizes
from tools.demo_model.wkv7 import wkv7

TASKS = ("retr", "sts", "cls")  # retrieval, similarity of texts, classification
_SIDE_BY_SIDE = 48  # texts of similar length


class LayerState(NamedTuple):
    """The state of one layer after some texts."""

    wkv: Tensor  # [B, H, value, key]
    time_shift: Tensor  # [B, D]
    channel_shift: Tensor  # [B, D]

    def repeated(self, times: int) -> LayerState:
        """Return the state with each text's rows `times` times, one behind the other."""
        return LayerState(*(rows.repeat_interleave(times, 0) for rows in self))


class TaskHead(nn.Module):
    """The head of a task: from the feature of a text to its vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = (nn.Linear(width, width, bias=False) for _ in range(2))
        nn.init.zeros_(self.fc2.weight)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors, of length 1, of features. x: [B, D]; returns [B, D]"""
        return F.normalize(self.norm(x + self.fc2(torch.relu(self.fc1(x)))), dim=-1)


class Embedding(nn.Module):
    """An RWKV-7 whose output at the end of a text is the text's feature, and the heads of the tasks."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.rwkv = Model(sizes)
        self.rwkv.head = nn.Identity()  # there are no logits
        self.head = nn.ModuleDict({f"{task}_head": TaskHead(sizes.width) for task in TASKS})

    def features(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return the features [B, D] of texts, given as tokens that end with the end of the text."""
        by_length = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        found = []
        for first in range(0, len(texts), _SIDE_BY_SIDE):
            tokens, starts = _left_padded([texts[number] for number in by_length[first : first + _SIDE_BY_SIDE]])
            found.append(self.rwkv.hidden(tokens, starts, self.rwkv.initial_state())[:, -1])
        return torch.cat(found)[torch.tensor(by_length).argsort()]

    def vectors(self, features: Tensor, task: str) -> Tensor:
        """Return the vectors [B, D] for a task."""
        vectors: Tensor = self.head[f"{task}_head"](features)
        return vectors

    def states(self, texts: Sequence[Sequence[int]], states: Sequence[LayerState] | None = None) -> list[LayerState]:
        """Return the states after texts, given as tokens. They start from `states`, or else from the beginning."""
        tokens, starts = _left_padded(texts)
        initial = self.rwkv.initial_state()
        x, v_first = self.rwkv.blocks[0].ln0(self.rwkv.emb(tokens)), None
        after = []
        for layer, block in enumerate(self.rwkv.blocks):
            before = None if states is None else states[layer]
            inputs: Inputs
            mixed = block.ln1(x)
            inputs, gate, v_first = block.att.prepare(mixed, v_first, starts, before and before.time_shift)
            y, wkv = wkv7(*inputs, starts, initial[layer] if before is None else before.wkv)
            x = x + block.att.finish(y, inputs, gate)
            fed = block.ln2(x)
            x = x + block.ffn(fed, starts, before and before.channel_shift)
            after.append(LayerState(wkv, mixed[:, -1], fed[:, -1]))
        return after


class Reranker(nn.Module):
    """An RWKV-7 with one token, whose layers start from the embedding model's states, and a head for the score."""

    def __init__(self, sizes: Sizes) -> None:
        """Make a reranker for an embedding model with these sizes."""
        super().__init__()
        self.reranker = Model(replace(sizes, vocab=1))
        width = sizes.width
        self.reranker.head = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1, bias=False))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Return the log-odds [B] from each layer's states [B, H, value, key]."""
        rows = len(states[0])
        starts = torch.ones(rows, 1, dtype=torch.uint8)
        x, v_first = self.reranker.blocks[0].ln0(self.reranker.emb(torch.zeros(rows, 1, dtype=torch.int64))), None
        for block, state in zip(self.reranker.blocks, states, strict=True):
            inputs: Inputs
            inputs, gate, v_first = block.att.prepare(block.ln1(x), v_first, starts)
            x = x + block.att.finish(wkv7(*inputs, starts, state)[0], inputs, gate)
            x = x + block.ffn(block.ln2(x), starts)
        scores: Tensor = self.reranker.head(self.reranker.ln_out(x[:, 0]))[:, 0]
        return scores


def _left_padded(texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return tokens and starts [B, T] of texts that all end in the last column."""
    length = max(map(len, texts))
    tokens = np.zeros((len(texts), length), np.int64)
    starts = np.zeros((len(texts), length), np.uint8)
    for row, text in enumerate(texts):
        tokens[row, length - len(text) :] = text
        starts[row, length - len(text)] = 1
    return torch.from_numpy(tokens), torch.from_numpy(starts)
