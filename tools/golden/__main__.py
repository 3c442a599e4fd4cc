"""Write each case as NAME.safetensors (the model, f16) and NAME.npz (tokens, logits, the final state).

If the model is deep, the .npz also holds the logits with the rescaling that the package uses for f16.

Some cases also get gradients/NAME.npz: a random state, the loss of the tokens from it, and the gradient of this loss
with respect to the state, which torch's autograd computes in f64; and lora/NAME.npz, the same for random low-rank pairs
beside all matrices, from the empty state. `--gradients` makes only these, from the other files.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from rnn_engine.loading.trainer import find_pairs
from tests.support.golden import LORA
from tests.support.models import random_model, save_safetensors
from tools.golden.autograd import check_logits, gradients
from tools.golden.cases import CASES, Case
from tools.golden.oracle import run

RESCALED_LAYERS = 6  # the package halves x after each 6 layers, for f16


def write_case(case: Case, folder: Path) -> None:
    model = random_model(case.shape, case.seed, np.float16, layer0_v=case.layer0_v, bits=11)
    model_path = save_safetensors(model, folder / f"{case.name}.safetensors", "f16")
    tokens = np.random.default_rng(case.seed).integers(case.shape.vocab_size, size=case.num_tokens, dtype=np.int32)
    logits, state = run(model_path, case.shape.version, tokens.tolist())
    fields = {f"state.{field}": values for field, values in state.items()}
    if case.shape.num_layers > 2 * RESCALED_LAYERS:
        fields["rescaled_logits"], _ = run(model_path, case.shape.version, tokens.tolist(), RESCALED_LAYERS)
    np.savez_compressed(folder / f"{case.name}.npz", tokens=tokens, logits=logits, allow_pickle=False, **fields)
    print(f"{case.name}: {len(tokens)} tokens, logits from {logits.min():.2f} to {logits.max():.2f}")


def write_gradients(case: Case, folder: Path) -> None:
    with safe_open(folder / f"{case.name}.safetensors", "numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    with np.load(folder / f"{case.name}.npz", allow_pickle=False) as arrays:
        tokens, expected = arrays["tokens"].tolist(), arrays["logits"]
    check_logits(tensors, case.shape, tokens, expected)
    generator = np.random.default_rng(case.seed)
    empty, pairs = case.shape.initial_state(), find_pairs(LORA, tensors)
    fields_of_state = {name: values.shape for name, values in empty.items()}
    for kind, size, shapes, rest in (("gradients", 0.5, fields_of_state, {}), ("lora", 0.1, pairs.shapes, empty)):
        trained = {name: generator.normal(0.0, size, shape).astype(np.float16) for name, shape in shapes.items()}
        before = {**rest, **{name: values.astype(np.float32) for name, values in trained.items()}}
        loss, gradient = gradients(tensors, case.shape.version, tokens, before, LORA.alpha / LORA.rank)
        fields: dict[str, NDArray[Any]] = {f"gradient.{field}": gradient[field] for field in trained}
        fields |= {f"state.{field}": values for field, values in trained.items()}
        (folder / kind).mkdir(exist_ok=True)
        np.savez_compressed(folder / kind / f"{case.name}.npz", allow_pickle=False, loss=np.float64(loss), **fields)
        print(f"{case.name}: {kind} of the loss {loss:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.golden", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for the files; existing files of the same names are replaced")
    parser.add_argument("--only", default="", metavar="PREFIX", help="make only the cases whose names begin with this")
    parser.add_argument("--gradients", action="store_true", help="make only the files of gradients")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if case.name.startswith(arguments.only):
            if not arguments.gradients:
                write_case(case, arguments.folder)
            if case.with_gradients:
                write_gradients(case, arguments.folder)


if __name__ == "__main__":
    main()
