"""Check the demo model's tools end to end, in a minute: the recurrence, a short training, and the export.

    python -m tools.demo_model.check

The wkv operator and its gradients must agree with the plain form. The loss of a small model must fall. The widened
model must compute the same. The logits of `rnn_engine.Model` for its exported file must be those of torch. Needs torch
and the project itself.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import rnn_engine
from tools.demo_model.model import Model, Sizes, shipped_tensors
from tools.demo_model.train import PHASES, Trainer, widened
from tools.demo_model.vocabulary import build
from tools.demo_model.wkv7 import plain_wkv7, wkv7

WKV_TOLERANCE = 1e-5  # relative to the greatest value
LOGIT_TOLERANCE = 1e-3  # relative to the greatest logit
STEPS = 30
TOKENS = 90


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the greatest absolute difference of two tensors, divided by the greatest absolute value of `expected`."""
    return float((found - expected).detach().abs().max() / expected.detach().abs().max())


def check_recurrence() -> None:
    """Check outputs, last states and gradients of the compiled recurrence, with documents that start inside a row."""
    shape = (3, 37, 2, 32)  # B, T, H, N
    direction = F.normalize(torch.randn(shape), dim=-1)
    r, k, v = (torch.randn(shape) for _ in range(3))
    w, b = 0.58 + 0.4 * torch.rand(shape), direction * torch.rand(shape)
    a = -direction
    starts = (torch.rand(shape[:2]) < 0.1).to(torch.uint8)
    initial = torch.randn(3, 2, 32, 32)
    inputs = [x.requires_grad_() for x in (r, w, k, v, a, b, initial)]
    compiled = wkv7(r, w, k, v, a, b, starts, initial)
    plain = plain_wkv7(r, w, k, v, a, b, starts, initial)
    upstream = [torch.randn_like(output) for output in plain]
    found, expected = (
        [*outputs, *torch.autograd.grad(outputs, inputs, upstream, retain_graph=True)] for outputs in (compiled, plain)
    )
    errors = [relative_error(one, other) for one, other in zip(found, expected, strict=True)]
    expect("wkv7 and its gradients, relative error", max(errors), WKV_TOLERANCE)


def check_training() -> Model:
    """Check that a short training run, without compilation, reduces the loss. Return its model."""
    tokenizer = build()
    sizes = Sizes(vocab=tokenizer.get_vocab_size(), width=128, layers=2, ffn=256)
    trainer = Trainer(Model(sizes), tokenizer, PHASES["first"])
    losses = [trainer.step(min(1.0, (step + 1) / 10)) for step in range(STEPS)]
    expect(f"loss after {STEPS} steps, relative to the first", losses[-1] / losses[0], 0.6)
    return trainer.model


def check_widening(model: Model) -> None:
    """Check that widening a model's feed-forward halves does not change the hidden vectors that it computes."""
    wider = Model(replace(model.sizes, ffn=2 * model.sizes.ffn))
    wider.load_state_dict(widened(model.state_dict(), wider))
    tokens, starts = torch.randint(1, model.sizes.vocab, (1, TOKENS)), torch.zeros(1, TOKENS, dtype=torch.uint8)
    found, expected = (each.eval().hidden(tokens, starts, each.initial_state()) for each in (wider, model))
    expect("hidden vectors of the widened model, relative error", relative_error(found, expected), WKV_TOLERANCE)


def check_export(model: Model) -> None:
    """Check the engine's logits for the exported file against those of torch with the same f16 weights."""
    tokens = torch.randint(1, model.sizes.vocab, (1, TOKENS))
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "model.safetensors"
        save_file(shipped_tensors(model), weights)
        with rnn_engine.Model(weights, tokenizer="none") as engine:
            found = torch.from_numpy(engine.forward(tokens[0].tolist(), all_logits=True)[0])  # [T, V]
        model.load_state_dict({name: value.float() for name, value in load_file(weights).items()})
    model.eval()
    starts = torch.zeros(1, TOKENS, dtype=torch.uint8)
    with torch.no_grad():
        expected = model.head(model.hidden(tokens, starts, model.initial_state()))[0]
    expect("logits of engine and torch, relative error", relative_error(found, expected), LOGIT_TOLERANCE)


def expect(what: str, value: float, limit: float) -> None:
    """Print `value`, and exit with an error if it exceeds `limit` or is NaN. `what` names it."""
    print(f"{what}: {value:.2e} (limit {limit:g})", flush=True)
    if not value <= limit:
        raise SystemExit(f"{what}: {value:g} exceeds {limit:g}")


def main() -> None:
    torch.manual_seed(0)
    check_recurrence()
    model = check_training()
    check_widening(model)
    check_export(model)


if __name__ == "__main__":
    main()
