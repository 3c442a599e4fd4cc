"""RWKV-5, RWKV-6 and RWKV-7 in torch's differentiable operations, by the formulas of BlinkDL's package `rwkv`.

One sequence runs in f64: T tokens, D width, H heads, N head size. A wkv state is [H, value, key] for every version.
`logits` gives what the package computes, and `gradients` the derivatives of the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rnn_engine.types import ModelShape

Tensors = Mapping[str, Tensor]

_LAYER_NORM_EPSILON = 1e-5
_GROUP_NORM_EPSILON = 64e-5


def gradients(
    tensors: Mapping[str, NDArray[np.generic]],
    version: str,
    tokens: Sequence[int],
    state: Mapping[str, NDArray[np.float32]],
    scale: float = 1.0,
) -> tuple[float, dict[str, NDArray[np.float32]]]:
    """Return the loss of `tokens` from `state`, in nats over all predictions, and its gradient in each state field.

    `state` may also hold low-rank pairs, whose products are added to their matrices `scale` times.
    """
    weights = _to_torch(tensors)
    leaves = {name: torch.from_numpy(values.astype(np.float64)).requires_grad_() for name, values in state.items()}
    for module in [name.removesuffix(".lora_A") for name in leaves if name.endswith(".lora_A")]:
        weights[f"{module}.weight"] += scale * leaves[f"{module}.lora_B"] @ leaves[f"{module}.lora_A"]
    ids = torch.tensor(tokens)
    loss = functional.cross_entropy(logits(weights, version, ids[:-1], leaves), ids[1:], reduction="sum")
    loss.backward()
    found = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return loss.item(), {name: grad.numpy().astype(np.float32) for name, grad in found.items()}


def check_logits(
    tensors: Mapping[str, NDArray[np.generic]], shape: ModelShape, tokens: Sequence[int], expected: NDArray[np.float32]
) -> None:
    """Raise ValueError unless the logits after `tokens` from the empty state are the package's, `expected` [T, V]."""
    state = {name: torch.from_numpy(values).double() for name, values in shape.initial_state().items()}
    with torch.no_grad():
        found = logits(_to_torch(tensors), shape.version, torch.tensor(tokens), state).numpy()
    error = np.abs(found - expected).max() / np.abs(expected).max()
    if not error < 2e-5:
        raise ValueError(f"the logits differ from those of the package by {error:.1e} of the greatest; expected 2e-5")


def logits(weights: Tensors, version: str, ids: Tensor, state: Tensors) -> Tensor:
    """Return the logits [T, V] after each of the tokens `ids` [T] that follow `state`, [L, ...] a field."""
    x = _layer_norm(functional.embedding(ids, weights["emb.weight"]), weights, "blocks.0.ln0")
    v_first = None
    for layer in range(len(state["wkv"])):
        prefix = f"blocks.{layer}."
        block = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        mixed = _layer_norm(x, block, "ln1")
        shifted = _shift(mixed, state["att_shift"][layer])
        if version == "v7":
            out, v_first = _time_mix_v7(block, mixed, shifted, state["wkv"][layer], v_first)
        elif version == "v6":
            out = _time_mix_v6(block, mixed, shifted, state["wkv"][layer])
        else:
            out = _time_mix_v5(block, version, mixed, shifted, state["wkv"][layer])
        x = x + out
        mixed = _layer_norm(x, block, "ln2")
        x = x + _channel_mix(block, version, mixed, _shift(mixed, state["ffn_shift"][layer]))
    return _layer_norm(x, weights, "ln_out") @ weights["head.weight"].T


def _time_mix_v7(
    block: Tensors, x: Tensor, shifted: Tensor, wkv: Tensor, v_first: Tensor | None
) -> tuple[Tensor, Tensor]:
    def mix(kind: str) -> Tensor:
        return torch.lerp(x, shifted, block[f"att.x_{kind}"])

    def adapter(kind: str, inner: Tensor) -> Tensor:
        return block[f"att.{kind}0"] + inner @ block[f"att.{kind}2"]

    r = mix("r") @ block["att.receptance.weight"].T
    k = mix("k") @ block["att.key.weight"].T
    v = mix("v") @ block["att.value.weight"].T
    gate = torch.sigmoid(mix("g") @ block["att.g1"]) @ block["att.g2"]
    decay = torch.exp(-0.606531 * torch.sigmoid(adapter("w", torch.tanh(mix("w") @ block["att.w1"]))))
    rate = torch.sigmoid(adapter("a", mix("a") @ block["att.a1"]))
    if v_first is None:
        v_first = v
    else:
        v = torch.lerp(v, v_first, torch.sigmoid(adapter("v", mix("v") @ block["att.v1"])))

    num_heads = len(wkv)
    removal = functional.normalize(_heads(k * block["att.k_k"], num_heads), dim=-1)
    r, k, v, decay, rate = (
        _heads(values, num_heads) for values in (r, k * (1 + (rate - 1) * block["att.k_a"]), v, decay, rate)
    )
    y = []
    for t in range(len(x)):
        removed = torch.einsum("hij,hj->hi", wkv, -removal[t])
        wkv = wkv * decay[t][:, None] + _outer(removed, removal[t] * rate[t]) + _outer(v[t], k[t])
        y.append(torch.einsum("hij,hj->hi", wkv, r[t]))
    bonus = (r * k * _heads(block["att.r_k"].reshape(1, -1), num_heads)).sum(-1, keepdim=True) * v
    out = _group_norm(torch.stack(y), block) + bonus.flatten(1)
    return (out * gate) @ block["att.output.weight"].T, v_first


def _time_mix_v6(block: Tensors, x: Tensor, shifted: Tensor, wkv: Tensor) -> Tensor:
    delta = shifted - x
    inner = torch.tanh((x + delta * block["att.time_maa_x"]) @ block["att.time_maa_w1"])
    parts = inner.chunk(5, dim=-1)
    mixed = {
        kind: x + delta * (block[f"att.time_maa_{kind}"] + part @ matrix)
        for kind, part, matrix in zip("wkvrg", parts, block["att.time_maa_w2"], strict=True)
    }
    w = block["att.time_decay"].flatten() + (
        torch.tanh(mixed["w"] @ block["att.time_decay_w1"]) @ block["att.time_decay_w2"]
    )
    decay = _heads(torch.exp(-torch.exp(w)), len(wkv))
    return _bonus_recurrence(block, mixed, decay, block["att.time_faaaa"], wkv)


def _time_mix_v5(block: Tensors, version: str, x: Tensor, shifted: Tensor, wkv: Tensor) -> Tensor:
    kinds = "rkv" if version == "v5.0" else "rkvg"
    mixed = {kind: torch.lerp(shifted, x, block[f"att.time_mix_{kind}"]) for kind in kinds}
    u = torch.exp(block["att.time_first"]) if version == "v5.0" else block["att.time_faaaa"]
    size = wkv.shape[:2]
    decay = torch.exp(-torch.exp(block["att.time_decay"])).reshape(len(wkv), -1).expand(len(x), *size)
    return _bonus_recurrence(block, mixed, decay, u.reshape(len(wkv), -1).expand(size), wkv)


def _bonus_recurrence(block: Tensors, mixed: Tensors, decay: Tensor, u: Tensor, wkv: Tensor) -> Tensor:
    """Return what a time mix of RWKV-5 or RWKV-6 makes of its shifted inputs. decay: [T, H, N]; u: [H, N]."""
    r, k, v = (
        _heads(mixed[kind] @ block[f"att.{name}.weight"].T, len(wkv))
        for kind, name in (("r", "receptance"), ("k", "key"), ("v", "value"))
    )
    y = []
    for t in range(len(r)):
        new = _outer(v[t], k[t])
        y.append(torch.einsum("hij,hj->hi", wkv + new * u[:, None], r[t]))
        wkv = wkv * decay[t][:, None] + new
    out = _group_norm(torch.stack(y), block)
    if "g" in mixed:
        out = out * functional.silu(mixed["g"] @ block["att.gate.weight"].T)
    return out @ block["att.output.weight"].T


def _channel_mix(block: Tensors, version: str, x: Tensor, shifted: Tensor) -> Tensor:
    match version:
        case "v7":
            mixed_k = torch.lerp(x, shifted, block["ffn.x_k"])
        case "v6":
            mixed_k = torch.lerp(x, shifted, block["ffn.time_maa_k"])
            mixed_r = torch.lerp(x, shifted, block["ffn.time_maa_r"])
        case _:
            mixed_k = torch.lerp(shifted, x, block["ffn.time_mix_k"])
            mixed_r = torch.lerp(shifted, x, block["ffn.time_mix_r"])
    out = functional.relu(mixed_k @ block["ffn.key.weight"].T).square() @ block["ffn.value.weight"].T
    return out if version == "v7" else torch.sigmoid(mixed_r @ block["ffn.receptance.weight"].T) * out


def _to_torch(tensors: Mapping[str, NDArray[np.generic]]) -> dict[str, Tensor]:
    """Return the tensors in f64. Files have vectors as [1, 1, D], which become [D]."""
    exact = {name: torch.from_numpy(values.astype(np.float64)) for name, values in tensors.items()}
    return {name: value.flatten() if value.shape[:-1] == (1, 1) else value for name, value in exact.items()}


def _shift(x: Tensor, before: Tensor) -> Tensor:
    """Return the vector before each of x [T, D]; `before` [D] is the one before the first."""
    return torch.cat([before[None], x[:-1]])


def _layer_norm(x: Tensor, weights: Tensors, name: str) -> Tensor:
    return functional.layer_norm(
        x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], _LAYER_NORM_EPSILON
    )


def _group_norm(y: Tensor, block: Tensors) -> Tensor:
    """Norm each head of y [T, H, N] -> [T, D]."""
    weight, bias = block["att.ln_x.weight"], block["att.ln_x.bias"]
    return functional.group_norm(y.flatten(1), y.shape[1], weight, bias, _GROUP_NORM_EPSILON)


def _heads(x: Tensor, num_heads: int) -> Tensor:
    return x.reshape(len(x), num_heads, -1)


def _outer(values: Tensor, keys: Tensor) -> Tensor:
    """Return the outer products [H, value, key] of vectors [H, N]."""
    return values[:, :, None] * keys[:, None]
