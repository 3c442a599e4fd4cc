"""The RWKV-7 recurrence as a torch operator, compiled from wkv7.cpp at first use, and in a plain form."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F  # noqa: N812
from torch.utils.cpp_extension import load


@cache
def _kernels() -> ModuleType:
    return load(
        name="demo_model_wkv7",
        sources=[str(Path(__file__).with_name("wkv7.cpp"))],
        extra_cflags=["-O3", "-march=native", "-ffast-math", "-fopenmp"],
        extra_ldflags=["-fopenmp"],
    )


@torch.library.custom_op("demo_model::wkv7", mutates_args=())
def _wkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, starts: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor]:
    x = [t.contiguous() for t in (r, w, k, v, a, b)]
    y, kept = _kernels().forward(x, starts, initial.contiguous())
    return y, kept


@_wkv7.register_fake
def _(*args: Tensor) -> tuple[Tensor, Tensor]:
    r = args[0]
    rows, tokens, heads, size = r.shape
    return r.new_empty(r.shape), r.new_empty(rows, heads, (tokens + 15) // 16, size, size)


@torch.library.custom_op("demo_model::wkv7_backward", mutates_args=())
def _wkv7_backward(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    starts: Tensor,
    initial: Tensor,
    kept: Tensor,
    dy: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    x = [t.contiguous() for t in (r, w, k, v, a, b)]
    return tuple(_kernels().backward(x, starts, initial.contiguous(), kept, dy.contiguous()))


@_wkv7_backward.register_fake
def _(*args: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.empty(t.shape) for t in (*args[:6], args[7]))


def _setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx: FunctionCtx, dy: Tensor, _dkept: Tensor) -> tuple[Tensor | None, ...]:
    dr, dw, dk, dv, da, db, dinitial = _wkv7_backward(*ctx.saved_tensors, dy)
    return dr, dw, dk, dv, da, db, None, dinitial


_wkv7.register_autograd(_backward, setup_context=_setup_context)


def wkv7(r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, starts: Tensor, initial: Tensor) -> Tensor:
    """Compute the RWKV-7 recurrence: return y [B, T, H, N].

    The inputs r, w (the decay itself), k, v, a and b are each [B, T, H, N].

    The state is set to `initial` [H, value, key] before the first token, and at each token with `starts` [B, T] uint8.
    """
    return _wkv7(r, w, k, v, a, b, starts, initial)[0]


def wkv7_and_state(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, starts: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the same as `wkv7`. Return y, and the state after the last token [B, H, value, key].

    The state is read by one more token for each of its keys, which changes nothing and receives that key alone.
    """
    rows, tokens, heads, size = r.shape
    nothing = r.new_zeros(rows, size, heads, size)
    keys = torch.eye(size).view(1, size, 1, size).expand(nothing.shape)
    y = wkv7(
        torch.cat([r, keys], 1),
        torch.cat([w, torch.ones_like(nothing)], 1),
        torch.cat([k, nothing], 1),
        torch.cat([v, nothing], 1),
        torch.cat([a, nothing], 1),
        torch.cat([b, nothing], 1),
        F.pad(starts, (0, size)),
        initial,
    )
    return y[:, :tokens], y[:, tokens:].permute(0, 2, 3, 1)


def plain_wkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, starts: Tensor, initial: Tensor
) -> Tensor:
    """Compute the same as `wkv7` in plain torch, one token at a time, which is slow. `initial` may also be [B, ...]."""
    rows, tokens, _, _ = r.shape
    state = initial.expand(rows, *initial.shape[-3:])  # [B, H, value, key]
    outputs = []
    for t in range(tokens):
        state = torch.where(starts[:, t, None, None, None] > 0, initial, state)
        removed = (state @ a[:, t, :, :, None]) * b[:, t, :, None, :]
        added = v[:, t, :, :, None] * k[:, t, :, None, :]
        state = state * w[:, t, :, None, :] + removed + added
        outputs.append((state @ r[:, t, :, :, None])[..., 0])
    return torch.stack(outputs, 1)
