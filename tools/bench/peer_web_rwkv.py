"""Measure web-rwkv on a random RWKV-6 of the 0.1B shape: run by a Python that has `web-rwkv-py==0.2.3`.

That version of the peer knows no v7. Its v6 of the same width, depth and vocabulary has about as many weights: the
ffn is 3.5 times the width instead of 4, and the attention has a gate matrix more. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import web_rwkv_py
from numpy.typing import NDArray
from safetensors.numpy import save_file

LAYERS, WIDTH, HEAD_SIZE, FFN, VOCAB = 12, 768, 64, 2688, 65536
MIX_RANK, DECAY_RANK = 32, 64


def random_tensors() -> dict[str, NDArray[np.float16]]:
    """Return weights in the file convention of web-rwkv: adapters with their last two dimensions swapped."""
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> NDArray[np.float16]:
        values = generator.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)
        return values.astype(np.float16)

    tensors = {"emb.weight": normal(VOCAB, WIDTH), "head.weight": normal(VOCAB, WIDTH)}
    norms = ["blocks.0.ln0", "ln_out"]
    for layer in range(LAYERS):
        att, ffn = f"blocks.{layer}.att", f"blocks.{layer}.ffn"
        norms += [f"blocks.{layer}.ln1", f"blocks.{layer}.ln2", f"{att}.ln_x"]
        for name in "xwkvrg":
            tensors[f"{att}.time_mix_{name}"] = normal(1, 1, WIDTH)
        tensors[f"{att}.time_mix_w1"] = normal(5 * MIX_RANK, WIDTH)
        tensors[f"{att}.time_mix_w2"] = normal(5, WIDTH, MIX_RANK)
        tensors[f"{att}.time_decay"] = normal(1, 1, WIDTH)
        tensors[f"{att}.time_decay_w1"] = normal(DECAY_RANK, WIDTH)
        tensors[f"{att}.time_decay_w2"] = normal(WIDTH, DECAY_RANK)
        tensors[f"{att}.time_first"] = normal(WIDTH // HEAD_SIZE, HEAD_SIZE)
        for name in ("receptance", "key", "value", "gate", "output"):
            tensors[f"{att}.{name}.weight"] = normal(WIDTH, WIDTH)
        tensors[f"{ffn}.time_mix_k"] = normal(1, 1, WIDTH)
        tensors[f"{ffn}.time_mix_r"] = normal(1, 1, WIDTH)
        tensors[f"{ffn}.key.weight"] = normal(FFN, WIDTH)
        tensors[f"{ffn}.value.weight"] = normal(WIDTH, FFN)
        tensors[f"{ffn}.receptance.weight"] = normal(WIDTH, WIDTH)
    for norm in norms:
        tensors[f"{norm}.weight"] = np.ones(WIDTH, np.float16)
        tensors[f"{norm}.bias"] = np.zeros(WIDTH, np.float16)
    return tensors


def tokens_per_second(model: web_rwkv_py.Model, num_tokens: int, repeats: int) -> float:
    """Return the median over `repeats` runs of `num_tokens` tokens, after a warm-up."""
    tokens = [(position * 31 + 1) % VOCAB for position in range(num_tokens)]
    model.run(tokens)
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        model.run(tokens)
        seconds.append(time.perf_counter() - begun)
    return num_tokens / statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "v6.st"
        save_file(random_tensors(), path)
        model = web_rwkv_py.Model(str(path))
    decode = tokens_per_second(model, 1, arguments.repeats)
    prefill = tokens_per_second(model, arguments.length, max(2, arguments.repeats // 2))
    print(json.dumps({"decode": decode, "prefill": prefill}))


if __name__ == "__main__":
    main()
