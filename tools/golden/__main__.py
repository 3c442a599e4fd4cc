"""Write each case as NAME.safetensors (the model, f16) and NAME.npz (tokens, logits, the final state).

If the model is deep, the .npz also holds the logits with the rescaling that the package uses for f16.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from tests.support.models import random_model, save_safetensors
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.golden", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for the files; existing files of the same names are replaced")
    parser.add_argument("--only", default="", metavar="PREFIX", help="make only the cases whose names begin with this")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if case.name.startswith(arguments.only):
            write_case(case, arguments.folder)


if __name__ == "__main__":
    main()
