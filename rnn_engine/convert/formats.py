"""The file formats to which a model can be converted, for the help of the command line and for messages."""

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
