"""The RWKV-7 recurrence as a torch operator, compiled from wkv7.cpp at first use, and in a plain form."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
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
) -> tuple[Tensor, Tensor, Tensor]:
    x = [t.contiguous() for t in (r, w, k, v, a, b)]
    y, kept, last = _kernels().forward(x, starts, initial.contiguous())
    return y, kept, last


@_wkv7.register_fake
def _(*args: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r, initial = args[0], args[7]
    rows, tokens, heads, size = r.shape
    return (
        r.new_empty(r.shape),
        r.new_empty(rows, heads, (tokens + 15) // 16, size, size),
        initial.new_empty(initial.shape),
    )


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
    dlast: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    x = [t.contiguous() for t in (r, w, k, v, a, b)]
    return tuple(_kernels().backward(x, starts, initial.contiguous(), kept, dy.contiguous(), dlast.contiguous()))


@_wkv7_backward.register_fake
def _(*args: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.empty(t.shape) for t in (*args[:6], args[7]))


def _setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx: FunctionCtx, dy: Tensor, _dkept: Tensor, dlast: Tensor) -> tuple[Tensor | None, ...]:
    dr, dw, dk, dv, da, db, dinitial = _wkv7_backward(*ctx.saved_tensors, dy, dlast)
    return dr, dw, dk, dv, da, db, None, dinitial


_wkv7.register_autograd(_backward, setup_context=_setup_context)


def wkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, starts: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the RWKV-7 recurrence. Return y [B, T, H, N], and the state after the last token [B, H, value, key].

    The inputs r, w (the decay itself), k, v, a and b are each [B, T, H, N].

    The state is set to `initial` before the first token, and at each token with `starts` [B, T] uint8. It is
    [H, value, key], or [B, H, value, key] with one for each row.
    """
    y, _, last = _wkv7(r, w, k, v, a, b, starts, initial.expand(len(r), *initial.shape[-3:]))
    return y, last


def plain_wkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, starts: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the same as `wkv7` in plain torch, one token at a time, which is slow."""
    rows, tokens, _, _ = r.shape
    state = initial.expand(rows, *initial.shape[-3:])  # [B, H, value, key]
    outputs = []
    for t in range(tokens):
        state = torch.where(starts[:, t, None, None, None] > 0, initial, state)
        removed = (state @ a[:, t, :, :, None]) * b[:, t, :, None, :]
        added = v[:, t, :, :, None] * k[:, t, :, None, :]
        state = state * w[:, t, :, None, :] + removed + added
        outputs.append((state @ r[:, t, :, :, None])[..., 0])
    return torch.stack(outputs, 1), state
