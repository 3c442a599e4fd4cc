"""Write each case as NAME.safetensors (the model, f16) and NAME.npz (tokens, logits, the final state)."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from tests.support.models import random_model, save_safetensors
from tools.golden.cases import CASES, Case
from tools.golden.oracle import run_v7


def write_case(case: Case, folder: Path) -> None:
    model = random_model(case.shape, case.seed, np.float16, layer0_v=case.layer0_v, bits=11)
    model_path = save_safetensors(model, folder / f"{case.name}.safetensors", "f16")
    tokens = np.random.default_rng(case.seed).integers(case.shape.vocab_size, size=case.num_tokens, dtype=np.int32)
    logits, state = run_v7(model_path, tokens.tolist())
    fields = {f"state.{field}": values for field, values in state.items()}
    np.savez_compressed(folder / f"{case.name}.npz", tokens=tokens, logits=logits, allow_pickle=False, **fields)
    print(f"{case.name}: {len(tokens)} tokens, logits from {logits.min():.2f} to {logits.max():.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.golden", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the files go; those of the same name are replaced")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        write_case(case, folder)


if __name__ == "__main__":
    main()
