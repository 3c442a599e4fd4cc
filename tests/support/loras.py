"""Random LoRAs, as files in every form that the project reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.support.models import TensorModel

F32 = NDArray[np.float32]


def draw(seed: int, *shape: int) -> F32:
    """Return small numbers, which f16 holds exactly, too."""
    return np.random.default_rng(seed).normal(0.0, 0.1, shape).astype(np.float16).astype(np.float32)


def draw_pair(model: TensorModel, name: str, rank: int, seed: int = 0) -> tuple[F32, F32]:
    """Return A [R, in] and B [out, R] for a matrix of the model."""
    rows, columns = model.tensor(name).shape
    return draw(seed, rank, columns), draw(seed + 1, rows, rank)


def save(tensors: Mapping[str, NDArray[Any]], path: Path) -> Path:
    save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, path)
    return path


def save_ai00(pairs: Mapping[str, tuple[F32, F32]], path: Path) -> Path:
    """Write a LoRA as ai00 does. `pairs` are by the names of matrices, without `.weight`."""
    halves = {f"{name}.lora.0": down.T for name, (down, _) in pairs.items()}
    return save(halves | {f"{name}.lora.1": up for name, (_, up) in pairs.items()}, path)


def save_peft(pairs: Mapping[str, tuple[F32, F32]], folder: Path, config: Mapping[str, object]) -> Path:
    """Write a LoRA as PEFT does. `pairs` are by the names of modules."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **config}))
    halves = {f"base_model.model.{name}.lora_A.weight": down for name, (down, _) in pairs.items()}
    halves |= {f"base_model.model.{name}.lora_B.weight": up for name, (_, up) in pairs.items()}
    save(halves, folder / "adapter_model.safetensors")
    return folder
