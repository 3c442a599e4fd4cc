"""Make the golden files of QRWKV6 and ARWKV: small random models, and llama.cpp's log-probabilities for them.

pip install -r tools/golden/requirements.txt          # in an environment of its own
python -m tools.golden.llama_cpp tests/golden/llama_cpp

Each NAME.npz has the tensors in f16 (`tensor.blocks.0...`), tokens [T], and log-probabilities [T, V] after each.
The heads of ARWKV have a multiple of 32 as their size, since llama.cpp computes others wrong on processors with wide
vectors: at size 16 its log-probabilities were 70 % off, and at 32, 64, 96 and 128 they agreed with numpy's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnn_engine.types import ModelShape
from tests.support.gguf import bpe_vocabulary, save_gguf
from tests.support.models import random_model
from tests.support.older_models import tiny_v6_qwen2, tiny_v7_qwen2

NUM_TOKENS = 24
CASES: dict[str, tuple[ModelShape, bool]] = {  # a shape, and if the model has biases, or a group norm
    "v6-grouped-biased-head16": (tiny_v6_qwen2(layers=2, vocab=43), True),
    "v6-grouped-head64": (tiny_v6_qwen2(layers=1, width=128, head_size=64, kv_heads=1, ffn=40, vocab=43), True),
    "v6-head128": (tiny_v6_qwen2(layers=1, width=128, head_size=128, kv_heads=1, ffn=40, vocab=43), False),
    "v7-head128": (tiny_v7_qwen2(width=128, head_size=128, ffn=40, vocab=43), True),
    "v7-head64": (tiny_v7_qwen2(head_size=64, vocab=43), True),
    "v7-without-gate": (tiny_v7_qwen2(head_size=64, vocab=43, gate_rank=0), True),
    "v7-without-group-norm": (tiny_v7_qwen2(head_size=64, vocab=43), False),
}


def log_probabilities(path: Path, tokens: list[int], vocab_size: int) -> NDArray[np.float32]:
    """Return llama.cpp's log-probabilities [T, V] of the next token after each of `tokens`, for a GGUF file."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.n_gpu_layers, params.verbosity = 256, 1, 0, 0
    server = xllamacpp.Server(params)
    rows = np.empty((len(tokens), vocab_size), np.float32)
    for count in range(len(tokens)):
        asked = {"prompt": tokens[: count + 1], "n_predict": 1, "n_probs": vocab_size, "cache_prompt": False}
        answer: dict[str, Any] = server.handle_completions({**asked, "temperature": 0.0})
        for each in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
            rows[count, each["id"]] = each["logprob"]
    return rows


def main(folder: Path) -> None:
    for name, (shape, optional) in CASES.items():
        model = random_model(shape, len(name), np.float16, bits=3, optional=optional)
        tokens = np.random.default_rng(7).integers(shape.vocab_size, size=NUM_TOKENS, dtype=np.int32)
        with TemporaryDirectory() as temporary:
            path = save_gguf(model, Path(temporary) / "model.gguf", more=bpe_vocabulary(shape.vocab_size))
            logprobs = log_probabilities(path, tokens.tolist(), shape.vocab_size)
        tensors = {f"tensor.{tensor}": values for tensor, values in model.tensors.items()}
        np.savez_compressed(folder / f"{name}.npz", tokens=tokens, logprobs=logprobs, allow_pickle=False, **tensors)
        print(f"{name}: log-probabilities from {logprobs.min():.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
