"""A program that runs a model file with the `rwkv` package in f32 on the CPU, for results to compare with.

The package reads from the environment, when it is imported, if it must run version 7 or an earlier one. So each model
is run in its own process. The package reads .pth files only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

_FIELDS: Final = {
    3: ("att_shift", "wkv", "ffn_shift"),
    5: ("att_shift", "aa", "bb", "pp", "ffn_shift"),
}
"""The number of entries a layer in the package's list -> the state fields that they are."""


def switches(version: str, rescaled_layers: int = 0) -> dict[str, str]:
    """Return the environment variables with which the package runs models of `version`."""
    return {
        "RWKV_V7_ON": str(int(version.startswith("v7"))),
        "RWKV_DE_VERSION": str(int(version == "v7-deepembed")),
        "RWKV_JIT_ON": "1",
        "RWKV_CUDA_ON": "0",
        "RWKV_RESCALE_LAYER": str(rescaled_layers),
    }


def run(model_path: Path, version: str, tokens: Sequence[int], rescaled_layers: int = 0) -> tuple[F32, dict[str, F32]]:
    """Return the logits [T, V] after every token, and the final state in the project's layout.

    After each `rescaled_layers` layers, x and the later additions to it are halved, as the package does for f16 before
    version 7. 0 means never.
    """
    with TemporaryDirectory() as folder:
        results = Path(folder) / "results.npz"
        command = [sys.executable, "-m", "tools.golden.oracle", str(model_path), str(results), *map(str, tokens)]
        subprocess.run(
            command, env=os.environ | switches(version, rescaled_layers), check=True, stdout=subprocess.DEVNULL
        )
        with np.load(results, allow_pickle=False) as arrays:
            state = {name: arrays[name] for name in arrays.files if name != "logits"}
            return arrays["logits"], state


def _main(model_path: str, results: str, *tokens: str) -> None:
    """Write one model's logits and final state to the file `results`."""
    import torch
    from rwkv.model import RWKV
    from safetensors.torch import load_file

    with TemporaryDirectory() as folder:
        pth_path = Path(folder) / "model.pth"
        tensors = load_file(model_path)
        names = sorted(tensors, key=lambda name: "time_maa" not in name)  # else the package first takes a v6 for a v5
        torch.save({name: tensors[name].float() for name in names}, pth_path)  # else it norms the embedding in f16
        model = RWKV(model=str(pth_path.with_suffix("")), strategy="cpu fp32")
        logits, state = model.forward([int(token) for token in tokens], None, full_output=True)
    is_v7 = os.environ["RWKV_V7_ON"] == "1"
    fields = arrange_state([tensor.numpy() for tensor in state], model.args.n_layer, is_v7=is_v7)
    np.savez(results, allow_pickle=False, logits=logits.numpy(), **fields)


def arrange_state(state: Sequence[NDArray[Any]], num_layers: int, *, is_v7: bool) -> dict[str, F32]:
    """Convert the package's list of state tensors, layer after layer, to the project's fields, each [L, ...].

    The package's wkv is [H, key, value] before version 7, and is transposed.
    """
    names = _FIELDS[len(state) // num_layers]
    fields = {name: np.stack(state[place :: len(names)]) for place, name in enumerate(names)}
    if "wkv" in fields and not is_v7:
        fields["wkv"] = np.ascontiguousarray(fields["wkv"].swapaxes(-1, -2))
    return fields


if __name__ == "__main__":
    _main(*sys.argv[1:])
