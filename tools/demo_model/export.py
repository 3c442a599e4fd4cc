"""Write a training checkpoint as the model file that ships: safetensors, f16, BlinkDL's names.

The adapters act as x @ w1, as in BlinkDL's own files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tools.demo_model.model import Model, Sizes


def load_model(checkpoint: Path) -> Model:
    """Return the model of a training checkpoint, in evaluation mode."""
    saved = torch.load(checkpoint, weights_only=True)
    model = Model(Sizes(**saved["sizes"]))
    model.load_state_dict(saved["model"])
    return model.eval()


def shipped_tensors(model: Model) -> dict[str, Tensor]:
    """Return the model's tensors in f16. Raises ValueError if f16 can't hold a value."""
    tensors = {name: value.detach().to(torch.float16).contiguous() for name, value in model.state_dict().items()}
    for name, value in tensors.items():
        if not torch.isfinite(value).all():
            raise ValueError(
                f"{name} has a value that f16 can't hold; the greatest is {model.state_dict()[name].abs().max()}"
            )
    return tensors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("output", type=Path, help="the .safetensors file to write")
    options = parser.parse_args()
    tensors = shipped_tensors(load_model(options.checkpoint))
    save_file(tensors, options.output, metadata={"format": "pt"})
    parameters = sum(value.numel() for value in tensors.values())
    print(f"{parameters} parameters, {options.output.stat().st_size} bytes -> {options.output}")


if __name__ == "__main__":
    main()
