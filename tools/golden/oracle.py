"""Run a model file with the `rwkv` package: version 7, f32, on the CPU.

The package chooses its version by the environment at the time of its import, and reads .pth files only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

os.environ["RWKV_V7_ON"] = "1"
os.environ["RWKV_JIT_ON"] = "1"
os.environ["RWKV_CUDA_ON"] = "0"
from rwkv.model import RWKV

F32 = NDArray[np.float32]


def run_v7(model_path: Path, tokens: Sequence[int]) -> tuple[F32, dict[str, F32]]:
    """Return the logits [T, V] after every token, and the final state in the project's layout."""
    with TemporaryDirectory() as folder:
        pth_path = Path(folder) / "model.pth"
        torch.save(load_file(model_path), pth_path)
        model = RWKV(model=str(pth_path.with_suffix("")), strategy="cpu fp32")
        logits, state = model.forward(list(tokens), None, full_output=True)
    return logits.numpy(), _arrange_state(state)


def _arrange_state(state: Sequence[Any]) -> dict[str, F32]:
    """The package's list [att shift, wkv, ffn shift, att shift of layer 1, ...] -> field: [L, ...].

    Its wkv is [H, value, key], as ours.
    """
    fields = ("att_shift", "wkv", "ffn_shift")
    return {field: np.stack([tensor.numpy() for tensor in state[i::3]]) for i, field in enumerate(fields)}
