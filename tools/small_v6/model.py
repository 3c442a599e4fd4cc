"""RWKV-6 in torch, for training: the demo model with other layers. The parameters have BlinkDL's names."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tools.demo_model.model import GROUP_NORM_EPS, Block, Model, Sizes, _adapter, _shift, _vector
from tools.demo_model.wkv7 import wkv7

MIXES = "wkvrg"


def wkv6(r: Tensor, decay: Tensor, k: Tensor, v: Tensor, bonus: Tensor, starts: Tensor) -> Tensor:
    """Compute the RWKV-6 recurrence: return y [B, T, H, N] of r, decay, k, v [B, T, H, N] and the bonus [H, N].

    The state is zero before each token with `starts` [B, T] set. This is RWKV-7's recurrence without the removal term,
    read one token late, since RWKV-6 reads the state before a token is added.
    """
    none = torch.zeros_like(r)
    initial = r.new_zeros(*r.shape[2:], r.shape[3])
    late = wkv7(F.pad(r, (0, 0, 0, 0, -1, 1)), decay, k, v, none, none, starts, initial)
    read = F.pad(late, (0, 0, 0, 0, 1, -1)) * (1 - starts[..., None, None].to(r.dtype))
    return read + (r * bonus * k).sum(-1, keepdim=True) * v


class TimeMix(nn.Module):
    """The time-mix half of a layer, with the recurrence; it has the place of attention."""

    def __init__(self, sizes: Sizes, layer: int) -> None:
        super().__init__()
        d, n = sizes.width, sizes.head
        self.by_head = (d // n, n)
        ratio, depth = torch.arange(d) / d, 1 - layer / sizes.layers
        for name, power in {"x": 1, "w": 1, "k": 1, "v": 0.7, "r": 0.5, "g": 0.5}.items():
            self.register_parameter(f"time_maa_{name}", _vector(1 - ratio ** (power * depth)))
        self.time_maa_w1 = _adapter(d, len(MIXES) * sizes.rank, 0)
        self.time_maa_w2 = nn.Parameter(torch.empty(len(MIXES), sizes.rank, d).uniform_(-0.01, 0.01))
        self.time_decay = _vector(
            -6 + 5 * (torch.arange(d) / (d - 1)) ** (0.7 + 1.3 * layer / max(sizes.layers - 1, 1))
        )
        self.time_decay_w1, self.time_decay_w2 = _adapter(d, sizes.rank, 0), _adapter(sizes.rank, d, 0.1)
        self.time_faaaa = nn.Parameter((1 - depth) * (1 - ratio).view(self.by_head))
        names = ("receptance", "key", "value", "gate", "output")
        self.receptance, self.key, self.value, self.gate, self.output = (nn.Linear(d, d, bias=False) for _ in names)
        nn.init.zeros_(self.output.weight)
        self.ln_x = nn.GroupNorm(d // n, d, eps=GROUP_NORM_EPS)

    def forward(self, x: Tensor, v_first: Tensor | None, starts: Tensor, _initial: Tensor) -> tuple[Tensor, Tensor]:
        rows, tokens, width = x.shape
        change = _shift(x, starts) - x
        inner = torch.tanh((x + change * self.time_maa_x) @ self.time_maa_w1).view(rows, tokens, len(MIXES), 1, -1)
        moves = (inner @ self.time_maa_w2)[..., 0, :].unbind(2)
        w, k, v, r, g = (
            x + change * (getattr(self, f"time_maa_{name}") + move) for name, move in zip(MIXES, moves, strict=True)
        )
        decay = torch.exp(-torch.exp(self.time_decay + torch.tanh(w @ self.time_decay_w1) @ self.time_decay_w2))
        r, decay, k, v = (
            t.view(rows, tokens, *self.by_head) for t in (self.receptance(r), decay, self.key(k), self.value(v))
        )
        y = wkv6(r, decay, k, v, self.time_faaaa, starts)
        y = self.ln_x(y.view(rows * tokens, width)).view(x.shape)
        return self.output(y * F.silu(self.gate(g))), x if v_first is None else v_first


class ChannelMix(nn.Module):
    """The channel-mix half of a layer, with the feed-forward network."""

    def __init__(self, sizes: Sizes, layer: int) -> None:
        super().__init__()
        ratio = torch.arange(sizes.width) / sizes.width
        for name in "kr":
            self.register_parameter(f"time_maa_{name}", _vector(1 - ratio ** (1 - layer / sizes.layers)))
        self.key = nn.Linear(sizes.width, sizes.ffn, bias=False)
        self.receptance = nn.Linear(sizes.width, sizes.width, bias=False)
        self.value = nn.Linear(sizes.ffn, sizes.width, bias=False)
        nn.init.zeros_(self.value.weight)

    def forward(self, x: Tensor, starts: Tensor) -> Tensor:
        change = _shift(x, starts) - x
        inner = torch.relu(self.key(x + change * self.time_maa_k)) ** 2
        return torch.sigmoid(self.receptance(x + change * self.time_maa_r)) * self.value(inner)


class ModelV6(Model):
    """A whole RWKV-6 model. The keys of state_dict() are BlinkDL's names."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            block.att, block.ffn = TimeMix(sizes, layer), ChannelMix(sizes, layer)
