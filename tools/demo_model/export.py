"""Write a training checkpoint as the model file that ships: safetensors, f16, BlinkDL's names.

The adapters act as x @ w1, as in BlinkDL's own files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors.torch import save_file

from tools.demo_model.model import load_model, shipped_tensors


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
