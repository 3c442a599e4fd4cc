"""The optimisers of the training: Muon for the large matrices, AdamW for all other parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

MUON_RATE = 0.02
ADAM_RATE = 0.003
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Return `matrices` [M, rows, columns] with their singular values pushed towards one, by Newton-Schulz steps."""
    a, b, c = _COEFFICIENTS
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.transpose(1, 2)


class Muon(torch.optim.Optimizer):
    """The Muon optimiser, for matrices of one shape: momentum with orthogonalised steps."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            parameters = group["params"]
            updates = orthogonal(torch.stack([self._momentum(p, group["momentum"]) for p in parameters]))
            rows, columns = parameters[0].shape
            scale = group["lr"] * max(1.0, rows / columns) ** 0.5
            for parameter, update in zip(parameters, updates, strict=True):
                parameter.sub_(update, alpha=scale)

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(state["momentum"], momentum)


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return the optimisers of all parameters of a model, one for the large matrices of each shape.

    Each group has its full learning rate as `rate`. Their steps may be taken by several threads at once.
    """
    large: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_large = "blocks." in name and parameter.ndim == 2 and min(parameter.shape) > 64
        (large[parameter.shape] if is_large else rest).append(parameter)
    made: list[torch.optim.Optimizer] = [Muon(parameters, MUON_RATE) for parameters in large.values()]
    made.append(torch.optim.AdamW(rest, ADAM_RATE, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0))
    for optimizer in made:
        for group in optimizer.param_groups:
            group["rate"] = group["lr"]
    return made


def set_progress(made: Iterable[torch.optim.Optimizer], factor: float) -> None:
    """Set the learning rate of every parameter group to `factor` times its full rate."""
    for optimizer in made:
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * factor
