"""`python -m tools.golden.drop_in`: compare `rnn_engine.compat.rwkv` with the package `rwkv`.

Both run one script with random models of every version, which have World's vocabulary. It needs the packages of
requirements.txt.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnn_engine.types import ModelShape
from tests.support.models import deep_embedded, random_model, tiny_shape
from tests.support.older_models import tiny_v4, tiny_v5, tiny_v6
from tools.golden.oracle import switches

_PACKAGE = "from rwkv.model import RWKV\nfrom rwkv.utils import PIPELINE, PIPELINE_ARGS\n"
_OURS = "from rnn_engine.compat.rwkv import PIPELINE, PIPELINE_ARGS, RWKV\n"
_SCRIPT = """
import copy, sys
import numpy as np

model = RWKV(model=sys.argv[1], strategy="cpu fp32")
pipeline = PIPELINE(model, "rwkv_vocab_v20230424")
results = {}

out, state = model.forward([187, 510, 1563, 310, 247], None)
results["logits"] = out.detach().cpu().numpy()
out, state = model.forward([187, 510], None)
kept = copy.deepcopy(state)
out, state = model.forward([1563], state)
out, state = model.forward([310, 247], state)
results["logits in parts"] = out.detach().cpu().numpy()
out, kept = model.forward([1563, 310, 247], kept, full_output=True)
results["logits of all tokens"] = out.detach().cpu().numpy()
for number, array in enumerate(kept):
    results[f"state {number}"] = array.detach().cpu().numpy()

np.random.seed(3)
draws = [pipeline.sample_logits(out[0].float().clone(), 1.2, 0.7, top_k) for top_k in (0, 5, 50) for _ in range(20)]
results["draws"] = np.array(draws)

sample = pipeline.sample_logits
for name, temperature, penalty in (("greedy", 0.0, 0.0), ("penalised", 0.0, 0.4), ("drawn", 1.0, 0.2)):
    drawn, told = [], []
    pipeline.sample_logits = lambda *arguments, **named: drawn.append(sample(*arguments, **named)) or drawn[-1]
    args = PIPELINE_ARGS(temperature, 0.5, 0, penalty, penalty, token_ban=[0], chunk_len=4)
    np.random.seed(2)
    text = pipeline.generate("User: simulate SpaceX mars landing\\n\\nAssistant:", 200, args, told.append)
    results[f"tokens, {name}"] = np.array(drawn)
    if name != "drawn":
        results[f"text, {name}"] = np.array([text, "|".join(told)])
np.savez(sys.argv[2], **results)
"""


def main() -> None:
    shapes = (tiny_v4(vocab=65536), tiny_v5(vocab=65536), tiny_v6(vocab=65536), tiny_shape(vocab=65536))
    for shape in (*shapes, deep_embedded(tiny_shape(vocab=65536))):
        with TemporaryDirectory() as folder:
            path = _write_pth(shape, Path(folder) / "model.pth")
            package, ours = (_run(imports, path, shape.version) for imports in (_PACKAGE, _OURS))
        _compare(shape.version, package, ours)


def _write_pth(shape: ModelShape, path: Path) -> Path:
    import torch

    tensors = random_model(shape, seed=9).tensors
    names = sorted(tensors, key=lambda name: "time_maa" not in name)  # else the package first takes a v6 for a v5
    torch.save({name: torch.from_numpy(tensors[name].astype(np.float32)) for name in names}, path)
    return path


def _run(imports: str, path: Path, version: str) -> dict[str, NDArray[Any]]:
    results = path.with_suffix(".npz")
    command = [sys.executable, "-c", imports + _SCRIPT, str(path.with_suffix("")), str(results)]
    subprocess.run(command, env=os.environ | switches(version), check=True, stdout=subprocess.DEVNULL)
    with np.load(results, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _compare(version: str, package: dict[str, NDArray[Any]], ours: dict[str, NDArray[Any]]) -> None:
    """Print the greatest difference of each kind of result; end with an error if it is beyond what may be."""
    if package.keys() != ours.keys():
        sys.exit(f"{version}: the results are {sorted(ours)}; expected {sorted(package)}")
    numbers = [name for name in package if name.startswith(("logits", "state"))]
    errors = {name: float(np.abs(package[name] - ours[name]).max() / np.abs(package[name]).max()) for name in numbers}
    logits = max(error for name, error in errors.items() if name.startswith("logits"))
    states = max(error for name, error in errors.items() if name.startswith("state"))
    same = [name for name in package if name not in errors and np.array_equal(package[name], ours[name])]
    others = [name for name in package if name not in errors and name not in same]
    print(f"{version}: logits {logits:.1e}, states {states:.1e} (relative); the same: {', '.join(same)}")
    for name in others:
        first = np.flatnonzero(package[name] != ours[name])[0]
        print(f"{version}: {name}: the first {first} of {len(ours[name])} are the same")
    if max(logits, states) > 1e-5 or others not in ([], ["tokens, drawn"]):  # a draw may lie on an edge
        sys.exit(f"{version}: the results differ")


if __name__ == "__main__":
    main()
