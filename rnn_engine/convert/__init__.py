"""Convert models: write an open model as a file of another format, with other tensor names or weight formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TITLES: Final[Mapping[str, str]] = {
    ".safetensors": "safetensors with BlinkDL's tensor names",
    ".st": "ai00's safetensors, in f16",
    ".prefab": "ai00's prefab, in f16",
    ".pth": "torch's file with BlinkDL's tensor names",
    ".gguf": "GGUF for llama.cpp, with the vocabulary",
}
"""The ending of a file's name -> the title of the file's format."""

FOLDER_TITLE: Final = "a folder with flash-linear-attention's tensor names"

FILE_ENDINGS: Final = frozenset(
    {*TITLES, ".bin", ".ckpt", ".ggml", ".h5", ".json", ".model", ".msgpack", ".npy", ".npz", ".onnx", ".pb", ".pkl"}
    | {".pt", ".pt2", ".tar", ".gz", ".tflite", ".toml", ".torch", ".txt", ".xz", ".yaml", ".yml", ".zip", ".zst"}
    | {".7z", ".bz2", ".engine", ".mar", ".mlmodel", ".mlpackage", ".nemo", ".ot", ".pdparams", ".t7", ".tgz"}
)
"""The endings by which this program or others know files; a name with any other is a folder's."""
