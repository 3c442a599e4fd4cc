"""Read and write model files, which hold named tensors (safetensors, .pth, GGUF, ...), without torch.

Files are read at positions and never mapped.
"""

from __future__ import annotations

import re
from typing import Final

_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})")


def part_names(name: str) -> list[str]:
    """Return the names of all parts of a GGUF model, in order, if `name` is that of a part; else only `name`."""
    match = _PART.fullmatch(name.removesuffix(".gguf")) if name.endswith(".gguf") else None
    if match is None or not 0 < int(match[2]) <= int(match[3]):
        return [name]
    return [f"{match[1]}-{number:05}-of-{match[3]}.gguf" for number in range(1, int(match[3]) + 1)]


def without_part(stem: str) -> str:
    """Return the name of a file of weights, without its ending, without the number of a part."""
    match = _PART.fullmatch(stem)
    return stem if match is None else match[1]
