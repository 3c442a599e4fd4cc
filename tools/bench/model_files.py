"""Files of the models that whole engines are measured with."""

from __future__ import annotations

from pathlib import Path

from safetensors.numpy import save_file

from rnn_engine.demo import model_path
from tools.bench.random_model import SHAPES, RandomModel

DEMO = "demo"
NAMES = (DEMO, *SHAPES)


def find_model(name: str, folder: Path) -> Path:
    """Return the path of the demo model, or of a random one of that shape, which is written into `folder`."""
    if name == DEMO:
        return model_path()
    model = RandomModel(SHAPES[name])
    path = folder / f"{name}.safetensors"
    save_file({tensor: model.tensor(tensor) for tensor in model.names}, path)
    return path
