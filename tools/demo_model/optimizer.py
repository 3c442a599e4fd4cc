"""The optimisers of the training: Muon for the large matrices, AdamW for all other parameters."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

MUON_RATE = 0.02
ADAM_RATE = 0.003


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return the optimisers of all parameters of a model. Each group has its full learning rate as `rate`.

    Their steps may be taken by several threads at once.
    """
    large: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_large = "blocks." in name and parameter.ndim == 2 and min(parameter.shape) > 64
        (large if is_large else rest).append(parameter)
    made: list[torch.optim.Optimizer] = [torch.optim.Muon(large, MUON_RATE, weight_decay=0.0)] if large else []
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
