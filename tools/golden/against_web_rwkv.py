"""Compare the reference with web-rwkv, ai00's engine, on random models that it reads from the `.st` files of `convert`.

Run it with a Python that has the packages of requirements.txt and `web-rwkv-py==0.2.3`. That package supports RWKV-4 to
RWKV-6, widths that are multiples of 512, four layers or more, and runs of fewer than 256 tokens. The tool prints the
relative error of each version's logits; it comes from web-rwkv's activations in f16.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import web_rwkv_py

from rnn_engine.convert.convert import convert_model
from rnn_engine.loading.runner import open_model
from rnn_engine.types import ModelShape
from tests.support.models import random_model, save_safetensors
from tests.support.older_models import tiny_v4, tiny_v5, tiny_v6
from tests.support.reference import forward, relative_error

_SHAPES: Final[Sequence[ModelShape]] = (
    tiny_v4(layers=4, width=512, ffn=2048, vocab=256),
    tiny_v5("v5.2", layers=4, width=512, head_size=64, ffn=2048, vocab=256),
    tiny_v6(layers=4, width=512, head_size=64, ffn=2048, vocab=256, mix_rank=32, decay_rank=64),
)
_NUM_TOKENS: Final = 40


def compare(shape: ModelShape, folder: Path) -> float:
    """Return the relative error between the reference's and web-rwkv's logits after the last of some random tokens."""
    model = random_model(shape, seed=1)
    path = folder / f"{shape.version}.st"
    with open_model(save_safetensors(model, folder / "source.safetensors")) as source:
        convert_model(source, path, "f16", force=True)
    tokens = np.random.default_rng(2).integers(shape.vocab_size, size=_NUM_TOKENS).tolist()
    logits, _ = forward(model, tokens, dtype=np.float64)
    found = np.array(web_rwkv_py.Model(str(path)).run(tokens))
    return relative_error(found, logits[-1])


def main() -> None:
    with TemporaryDirectory() as folder:
        for shape in _SHAPES:
            print(f"{shape.version}: {compare(shape, Path(folder)):.1e}", flush=True)


if __name__ == "__main__":
    main()
