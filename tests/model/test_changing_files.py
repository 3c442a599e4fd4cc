"""A model file that changes while it is read is an error, and one that changes afterwards makes no difference."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from rnn_engine.errors import ModelError
from rnn_engine.loading.runner import open_model
from tests.support.models import TensorModel, random_model, save_safetensors, tiny_shape
from tests.support.pth import save_pth

MODEL = random_model(tiny_shape(), seed=1)
OTHER = random_model(tiny_shape(), seed=2)

Save: TypeAlias = Callable[[TensorModel, Path], Path]


@pytest.fixture(params=["safetensors", "pth"])
def save(request: pytest.FixtureRequest) -> Save:
    return save_pth if request.param == "pth" else save_safetensors


@pytest.fixture
def path(save: Save, tmp_path: Path) -> Path:
    """Return the path of a file last written long ago, so that the next write has another time on every system."""
    path = save(MODEL, tmp_path / "model")
    os.utime(path, (1e9, 1e9))
    return path


def test_truncated_before_it_is_read(path: Path) -> None:
    with open_model(path) as opened:
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(ModelError, match="changed while it was read"):
            [opened.tensor(name) for name in opened.names]
        with pytest.raises(ModelError, match="changed while it was read"):
            assert opened.fingerprint


def test_rewritten_in_place_between_two_reads(path: Path, save: Save, tmp_path: Path) -> None:
    other = save(OTHER, tmp_path / "other").read_bytes()
    with open_model(path) as opened:
        opened.tensor("emb.weight")
        path.write_bytes(other)
        with pytest.raises(ModelError, match="changed while it was read: another program wrote to it"):
            opened.tensor("head.weight")
        with pytest.raises(ModelError, match="changed while it was read"):
            assert opened.fingerprint


def test_replaced_by_another_it_is_read_on_as_it_was(path: Path, save: Save, tmp_path: Path) -> None:
    with open_model(path) as opened:
        save(OTHER, tmp_path / "other").replace(path)
        for name in opened.names:
            np.testing.assert_array_equal(opened.tensor(name), MODEL.tensor(name).astype(opened.tensor(name).dtype))


def test_what_was_read_does_not_change_with_the_file(path: Path) -> None:
    with open_model(path) as opened:
        values = opened.tensor("emb.weight")
    before = values.copy()
    path.write_bytes(bytes(path.stat().st_size))
    np.testing.assert_array_equal(values, before)
    os.truncate(path, 0)
    np.testing.assert_array_equal(values, before)
