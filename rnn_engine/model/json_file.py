"""Read the small JSON files that lie in a model's folder."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from rnn_engine.errors import ModelError
from rnn_engine.tensor_files.binary_file import BinaryFile, FileStamp
from rnn_engine.tensor_files.listing import show

_MOST_BYTES: Final = 16 << 20  # an index of a thousand tensors has 0.1 MB


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that the file holds. Raises ModelError where the file can't be read or holds another thing."""
    return read_stamped_json(path)[0]


def read_stamped_json(path: Path) -> tuple[dict[str, Any], FileStamp]:
    """Return the object that the file holds, as `read_json`, and the stamp of the file that was read."""
    file = BinaryFile(path)
    try:
        if file.stamp.size > _MOST_BYTES:
            raise ModelError(f"{path} has {file.stamp.size} bytes; expected at most {_MOST_BYTES}")
        content = json.loads(file.read(0, file.stamp.size).tobytes(), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is no JSON: {error}") from error
    finally:
        file.close()
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds a {type(content).__name__}; expected an object")
    return content, file.stamp


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of JSON that has these fields. Raises ValueError where one of them is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"{show(repeated)} is there twice")
    return found
