"""RWKV-7 in torch, for training: from packed rows of documents to hidden vectors, with BlinkDL's names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tools.demo_model.batches import Rows
from tools.demo_model.wkv7 import wkv7

DECAY_SCALE = -0.606531  # -exp(-0.5): the decay of a channel lies in (exp(-0.606531), 1)
GROUP_NORM_EPS = 64e-5

Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""The inputs r, w, k, v, a and b of the recurrence, each [B, T, H, N]."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a model: its vocabulary, width, layers, heads and adapters."""

    vocab: int
    width: int = 128
    layers: int = 6
    head: int = 32
    ffn: int = 512
    rank: int = 24
    gate_rank: int = 32


def _shift(x: Tensor, starts: Tensor, before: Tensor | None) -> Tensor:
    """Return each token's previous vector; at the start of a document it is `before`, or zero.

    x: [B, T, D], starts: [B, T], before: [B, D]
    """
    previous = F.pad(x, (0, 0, 1, -1))
    begins = starts[..., None].to(x.dtype)
    return previous * (1 - begins) if before is None else torch.lerp(previous, before[:, None], begins)


def _vector(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value.reshape(1, 1, -1))


def _adapter(rows: int, columns: int, gain: float) -> nn.Parameter:
    weight = torch.zeros(rows, columns)
    if gain:
        nn.init.orthogonal_(weight, gain * math.sqrt(max(1.0, rows / columns)))
    return nn.Parameter(weight)


class Matrix(nn.Linear):
    """A linear layer without bias. In training it is computed in bf16, which takes half of the time."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        return F.linear(x.bfloat16(), self.weight.bfloat16()).float()


class TimeMix(nn.Module):
    """The time-mix half of a layer, with the recurrence; it has the place of attention."""

    def __init__(self, sizes: Sizes, layer: int) -> None:
        super().__init__()
        d, n = sizes.width, sizes.head
        self.layer, self.heads, self.head = layer, d // n, n
        depth = 1 - layer / sizes.layers  # 1 .. 1/L
        ratio = torch.arange(d) / d
        for name, power in {"r": 0.2, "w": 0.9, "k": 0.7, "v": 0.7, "a": 0.9, "g": 0.2}.items():
            self.register_parameter(f"x_{name}", _vector(1 - ratio ** (power * depth)))
        linear = torch.arange(d) / (d - 1)
        zigzag = ((torch.arange(d) % n) - (n - 1) / 2) / ((n - 1) / 2)
        zigzag = zigzag * zigzag.abs()
        self.w0 = _vector(-6 + 6 * linear ** (1 + layer / max(sizes.layers - 1, 1)) + 0.5 + zigzag * 2.5)
        self.w1, self.w2 = _adapter(d, sizes.rank, 0), _adapter(sizes.rank, d, 0.1)
        self.a0 = _vector(-0.19 + zigzag * 0.3 + (linear - 0.5) * 0.4)
        self.a1, self.a2 = _adapter(d, sizes.rank, 0), _adapter(sizes.rank, d, 0.1)
        if layer > 0:
            self.v0 = _vector(0.73 - (linear - 0.5) * 0.4)
            self.v1, self.v2 = _adapter(d, sizes.rank, 0), _adapter(sizes.rank, d, 0.1)
        self.g1, self.g2 = _adapter(d, sizes.gate_rank, 0), _adapter(sizes.gate_rank, d, 0.1)
        self.k_k = _vector(0.71 - linear * 0.1)
        self.k_a = _vector(torch.full((d,), 1.02))
        self.r_k = nn.Parameter(torch.full((d // n, n), -0.04))
        self.receptance, self.key, self.value, self.output = (Matrix(d, d) for _ in range(4))
        scale = 0.5 / math.sqrt(d)
        for matrix, gain in ((self.receptance, 1.0), (self.key, 0.1), (self.value, 1.0), (self.output, 0.0)):
            nn.init.uniform_(matrix.weight, -gain * scale, gain * scale)
        self.ln_x = nn.GroupNorm(d // n, d, eps=GROUP_NORM_EPS)

    def forward(self, x: Tensor, v_first: Tensor | None, starts: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
        inputs, gate, v_first = self.prepare(x, v_first, starts)
        return self.finish(wkv7(*inputs, starts, initial)[0], inputs, gate), v_first

    def prepare(
        self, x: Tensor, v_first: Tensor | None, starts: Tensor, before: Tensor | None = None
    ) -> tuple[Inputs, Tensor, Tensor]:
        """Return the inputs of the recurrence, the gate [B, T, D], and layer 0's values [B, T, D].

        `before` [B, D] is the vector before the first token of a document; None: zeros.
        """
        rows, tokens, _ = x.shape
        by_head = (rows, tokens, self.heads, self.head)
        change = _shift(x, starts, before) - x
        xr, xw, xk = x + change * self.x_r, x + change * self.x_w, x + change * self.x_k
        xv, xa, xg = x + change * self.x_v, x + change * self.x_a, x + change * self.x_g
        r, k, v = self.receptance(xr), self.key(xk), self.value(xv)
        decay = torch.exp(DECAY_SCALE * torch.sigmoid(self.w0 + torch.tanh(xw @ self.w1) @ self.w2))
        a = torch.sigmoid(self.a0 + (xa @ self.a1) @ self.a2)
        g = torch.sigmoid(xg @ self.g1) @ self.g2
        if v_first is None:
            v_first = v
        else:
            v = v + (v_first - v) * torch.sigmoid(self.v0 + (xv @ self.v1) @ self.v2)
        kk = F.normalize((k * self.k_k).view(by_head), dim=-1, eps=1e-12)
        k = k * (1 + (a - 1) * self.k_a)
        r, k, v_heads = r.view(by_head), k.view(by_head), v.view(by_head)
        return (r, decay.view(by_head), k, v_heads, -kk, kk * a.view(by_head)), g, v_first

    def finish(self, y: Tensor, inputs: Inputs, gate: Tensor) -> Tensor:
        """Return the output [B, T, D] of the time mix from `y` [B, T, H, N], which the recurrence gave for `inputs`."""
        r, _, k, v, _, _ = inputs
        y = self.ln_x(y.reshape(-1, gate.shape[-1])).view(r.shape)
        y = y + (r * k * self.r_k).sum(-1, keepdim=True) * v
        return self.output(y.view(gate.shape) * gate)


class ChannelMix(nn.Module):
    """The channel-mix half of a layer, with the feed-forward network."""

    def __init__(self, sizes: Sizes, layer: int) -> None:
        super().__init__()
        ratio = torch.arange(sizes.width) / sizes.width
        self.x_k = _vector(1 - ratio ** ((1 - layer / sizes.layers) ** 4))
        self.key = Matrix(sizes.width, sizes.ffn)
        self.value = Matrix(sizes.ffn, sizes.width)
        nn.init.uniform_(self.key.weight, -0.5 / math.sqrt(sizes.width), 0.5 / math.sqrt(sizes.width))
        nn.init.zeros_(self.value.weight)

    def forward(self, x: Tensor, starts: Tensor, before: Tensor | None = None) -> Tensor:
        mixed = x + (_shift(x, starts, before) - x) * self.x_k
        return self.value(torch.relu(self.key(mixed)) ** 2)


class Block(nn.Module):
    """One layer: a time mix and a channel mix."""

    def __init__(self, sizes: Sizes, layer: int) -> None:
        super().__init__()
        if layer == 0:
            self.ln0 = nn.LayerNorm(sizes.width)
        self.ln1, self.ln2 = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)
        self.att, self.ffn = TimeMix(sizes, layer), ChannelMix(sizes, layer)

    def forward(self, x: Tensor, v_first: Tensor | None, starts: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
        mixed, v_first = self.att(self.ln1(x), v_first, starts, initial)
        x = x + mixed
        return x + self.ffn(self.ln2(x), starts), v_first


class Model(nn.Module):
    """A whole RWKV-7 model. The keys of state_dict() are BlinkDL's names."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.emb = nn.Embedding(sizes.vocab, sizes.width)
        nn.init.uniform_(self.emb.weight, -1e-2, 1e-2)
        self.blocks = nn.ModuleList(Block(sizes, layer) for layer in range(sizes.layers))
        self.ln_out = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocab, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)

    def initial_state(self) -> Tensor:
        """Return the wkv state before the first token, all zeros. [L, H, value, key]"""
        size = self.sizes
        return torch.zeros(size.layers, size.width // size.head, size.head, size.head)

    def hidden(self, tokens: Tensor, starts: Tensor, initial: Tensor) -> Tensor:
        """Return the vectors before the head. tokens, starts: [B, T]; initial: [L, H, N, N]; returns [B, T, D]"""
        x = self.blocks[0].ln0(self.emb(tokens))
        v_first = None
        for layer, block in enumerate(self.blocks):
            x, v_first = block(x, v_first, starts, initial[layer])
        return self.ln_out(x)

    def loss(self, rows: Rows, initial: Tensor) -> Tensor:
        """Return the summed cross entropy of the tokens that have to be learnt."""
        tokens, starts, targets = (torch.from_numpy(x) for x in (rows.tokens, rows.starts, rows.targets))
        wanted = (targets >= 0).nonzero(as_tuple=True)
        logits = self.head(self.hidden(tokens, starts, initial)[wanted])
        return F.cross_entropy(logits, targets[wanted], reduction="sum")


def load_model(checkpoint: Path) -> Model:
    """Return the model of a training checkpoint in evaluation mode."""
    saved = torch.load(checkpoint, weights_only=True)
    model = Model(Sizes(**saved["sizes"]))
    model.load_state_dict(saved["model"])
    return model.eval()


def shipped_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's tensors as f16, for the model file. Raises ValueError if a value does not fit into f16."""
    tensors = {name: value.detach().to(torch.float16).contiguous() for name, value in model.state_dict().items()}
    for name, value in tensors.items():
        if not torch.isfinite(value).all():
            greatest = model.state_dict()[name].abs().max()
            raise ValueError(f"{name} has a value that f16 can't hold; the greatest is {greatest}")
    return tensors
