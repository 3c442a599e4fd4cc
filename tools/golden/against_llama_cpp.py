"""Compare the engine with llama.cpp on random RWKV-6 and RWKV-7 models in GGUF files that both of them read.

Run it with a Python that has the project and `llama-cpp-python==0.3.36`, built from PyPI's source. It prints, for each
model and type of its matrices, relative errors of the logits after every token: llama.cpp's and the engine's against
the reference in f64 with the file's weights, and llama.cpp's against the engine's. llama.cpp rounds activations to f16
to multiply f16 matrices, and to blocks of 8 bits to multiply quantised ones; the engine keeps activations in f32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import llama_cpp
import numpy as np

from rnn_engine.cli.generate import run_logits
from rnn_engine.convert.convert import convert_model
from rnn_engine.loading.runner import load_runner, open_model
from rnn_engine.reference import Array
from rnn_engine.types import ModelShape
from tests.support.models import random_model, save_safetensors, tiny_shape
from tests.support.older_models import tiny_v6
from tests.support.reference import forward, relative_error

_SHAPES: Final[Sequence[ModelShape]] = (
    tiny_v6(layers=3, width=256, head_size=64, ffn=1024, vocab=500, mix_rank=32, decay_rank=64),
    tiny_shape(layers=3, width=256, head_size=64, ffn=1024, vocab=500),
)
_QUANTISED: Final = {
    "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "Q4_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
}
_NUM_TOKENS: Final = 200


def run_llama_cpp(path: Path, tokens: Sequence[int]) -> Array:
    """Run llama.cpp on the tokens of a sequence, and return its logits [T, V] after each token."""
    with closing(
        llama_cpp.Llama(str(path), n_ctx=_NUM_TOKENS, n_batch=64, n_threads=1, logits_all=True, verbose=False)
    ) as model:
        model.eval(tokens)
        return np.array(model.scores[: len(tokens)], np.float64)


def quantise(source: Path, target: Path, file_type: int) -> None:
    """Quantise the GGUF file `source` with llama.cpp, and write the quantised file to `target`."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = file_type, 1
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) != 0:
        raise SystemExit(f"llama.cpp could not write {target}")


def write_files(shape: ModelShape, folder: Path) -> Iterator[tuple[str, Path]]:
    """Write a random model as GGUF files, and yield each weight format with its file.

    The engine writes floats; llama.cpp quantises them.
    """
    original = save_safetensors(random_model(shape, seed=1), folder / "model.safetensors", "f32")
    for weights in ("f32", "f16"):
        path = folder / f"{weights}.gguf"
        with open_model(original) as model:
            convert_model(model, path, weights, force=True)
        yield weights, path
    for name, file_type in _QUANTISED.items():
        quantise(folder / "f32.gguf", folder / f"{name}.gguf", file_type)
        yield name, folder / f"{name}.gguf"


def compare(path: Path) -> list[float]:
    """Run one model file in llama.cpp, the engine and the reference, and return three relative errors of logits.

    They are those of llama.cpp to the reference, of the engine to the reference, and of llama.cpp to the engine.
    """
    with open_model(path) as model, closing(load_runner(model, weights="stored")) as runner:
        tokens = np.random.default_rng(2).integers(1, model.shape.vocab_size, size=_NUM_TOKENS).tolist()
        expected, _ = forward(model, tokens, dtype=np.float64)
        ours = run_logits(runner, tokens, runner.max_rows, lambda *_: None, None).astype(np.float64)
    theirs = run_llama_cpp(path, tokens)
    return [relative_error(theirs, expected), relative_error(ours, expected), relative_error(theirs, ours)]


def main() -> None:
    print(
        "| version | matrices | llama.cpp from f64 | engine from f64 | llama.cpp from engine |\n|---|---|---|---|---|"
    )
    with TemporaryDirectory() as folder:
        for shape in _SHAPES:
            for weights, path in write_files(shape, Path(folder)):
                errors = (f"{error:.1e}" for error in compare(path))
                print(f"| {shape.version} | {weights} | {' | '.join(errors)} |", flush=True)


if __name__ == "__main__":
    main()
