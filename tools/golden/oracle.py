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

_FIELDS: Final = {3: ("att_shift", "wkv", "ffn_shift"), 5: ("att_shift", "aa", "bb", "pp", "ffn_shift")}
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


def run(
    model_path: Path, version: str, tokens: Sequence[int], rescaled_layers: int = 0, *, tuned_state: Path | None = None
) -> tuple[F32, dict[str, F32]]:
    """Return the logits [T, V] after every token, and the final state in the project's layout.

    After each `rescaled_layers` layers, x and the later additions to it are halved, as the package does for f16 before
    version 7. 0 means never. The tokens follow `tuned_state`, a .pth file of time_state tensors, or the empty state.
    """
    with TemporaryDirectory() as folder:
        results = Path(folder) / "results.npz"
        paths = [str(model_path), str(results), str(tuned_state or "")]
        command = [sys.executable, "-m", "tools.golden.oracle", *paths, *map(str, tokens)]
        subprocess.run(
            command, env=os.environ | switches(version, rescaled_layers), check=True, stdout=subprocess.DEVNULL
        )
        with np.load(results, allow_pickle=False) as arrays:
            state = {name: arrays[name] for name in arrays.files if name != "logits"}
            return arrays["logits"], state


def _main(model_path: str, results: str, tuned_state: str, *tokens: str) -> None:
    """Write one model's logits and final state to the file `results`. An empty `tuned_state` is the empty state."""
    import torch
    from rwkv.model import RWKV
    from safetensors.torch import load_file

    with TemporaryDirectory() as folder:
        pth_path = Path(folder) / "model.pth"
        tensors = load_file(model_path)
        names = sorted(tensors, key=lambda name: "time_maa" not in name)  # else the package first takes a v6 for a v5
        torch.save({name: tensors[name].float() for name in names}, pth_path)  # else it norms the embedding in f16
        model = RWKV(model=str(pth_path.with_suffix("")), strategy="cpu fp32")
    is_v7 = os.environ["RWKV_V7_ON"] == "1"
    initial = _read_tuned_state(tuned_state, model.args, is_v7=is_v7) if tuned_state else None
    logits, state = model.forward([int(token) for token in tokens], initial, full_output=True)
    fields = arrange_state([tensor.numpy() for tensor in state], model.args.n_layer, is_v7=is_v7)
    np.savez(results, allow_pickle=False, logits=logits.numpy(), **fields)


def _read_tuned_state(path: str, sizes: Any, *, is_v7: bool) -> list[Any]:  # noqa: ANN401
    """Return the package's list of state tensors for a file of RWKV-PEFT, as BlinkDL's chat reads it.

    A file has wkv as [H, value, key]; before version 7 the package wants [H, key, value].
    """
    import torch

    tensors = torch.load(path, weights_only=True)
    state = []
    for layer in range(sizes.n_layer):
        wkv = tensors[f"blocks.{layer}.att.time_state"].float()
        shift = torch.zeros(sizes.n_embd)
        state += [shift, wkv if is_v7 else wkv.transpose(1, 2).contiguous(), shift.clone()]
    return state


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
