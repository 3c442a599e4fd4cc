"""Small models of every version as files of every format, and what is read of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from rnn_engine.convert.convert import convert_model
from rnn_engine.errors import ModelError
from rnn_engine.loading.memory import usual_weights
from rnn_engine.loading.runner import open_model
from tests.support.ggmf import save_ggmf
from tests.support.hf import save_hf
from tests.support.models import TensorModel, random_model, save_safetensors
from tests.support.reference import forward
from tools.models.measure import SHAPES, measure, some_tokens

_CONVERTED: Final = (  # name of a file, what convert_model is told of weights
    *((f"f16{ending}", "f16") for ending in (".safetensors", ".pth", ".st", ".prefab", ".gguf", "")),
    *((f"{weights}.safetensors", weights) for weights in ("int8", "int4", "nf4", "sf4")),
    *((f"{weights}.gguf", weights) for weights in ("q8_0", "q4_0", "q4_1")),
)


def file_rows() -> list[list[str]]:
    """Return version, format, its weights, bytes of the file, those on the device, error and bytes of matrices."""
    rows = []
    for shape in SHAPES:
        model = random_model(shape, seed=1)
        tokens = some_tokens(shape)
        expected, _ = forward(model, tokens, dtype=np.float64)
        with TemporaryDirectory() as folder:
            for kind, types, path in _write_all(model, Path(folder)):
                with open_model(path) as opened:
                    weights, size = usual_weights(opened), f"{opened.num_bytes / 1e6:.2f}"
                    rows.append(
                        [shape.version, kind, types, size, weights, *measure(opened, tokens, weights, expected)]
                    )
    return rows


def _write_all(model: TensorModel, folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Write the model in all formats that hold it; yield the format, its weights and the path of each."""
    source = save_safetensors(model, folder / "source.safetensors")
    for name, weights in _CONVERTED:
        try:
            with open_model(source) as opened:
                convert_model(opened, folder / name, weights)
        except ModelError:  # the format does not hold this version
            continue
        yield Path(name).suffix or "folder of flash-linear-attention", weights, folder / name
    if model.shape.version in ("v4", "v5.2", "v6"):
        yield "folder of transformers", "f32", save_hf(model, folder / "transformers", "transformers")
    if model.shape.version != "v7-deepembed":
        for kind in ("FP16", "Q8_0", "Q4_0"):
            yield ".bin of rwkv.cpp", kind, save_ggmf(model, folder / f"{kind}.bin", kind)
