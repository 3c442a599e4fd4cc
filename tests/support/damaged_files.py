"""The errors of opening damaged model files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnn_engine.errors import ModelError
from rnn_engine.loading.runner import open_model


def refusal(path: Path, content: bytes) -> str:
    """Write a file, and return the error of opening it, which names the file."""
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        open_model(path)
    assert str(path) in str(caught.value)
    return str(caught.value)
