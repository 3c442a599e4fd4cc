"""Read the small JSON files that lie in a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from rnn_engine.errors import ModelError
from rnn_engine.tensor_files.binary_file import BinaryFile

_MOST_BYTES: Final = 16 << 20  # an index of a thousand tensors has 0.1 MB


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that the file holds. Raises ModelError where the file can't be read or holds another thing."""
    file = BinaryFile(path)
    try:
        if file.stamp.size > _MOST_BYTES:
            raise ModelError(f"{path} has {file.stamp.size} bytes; expected at most {_MOST_BYTES}")
        content = json.loads(file.read(0, file.stamp.size).tobytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is no JSON: {error}") from error
    finally:
        file.close()
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds a {type(content).__name__}; expected an object")
    return content
