"""A stand-in hub, and folders of the test's own for pulled models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub import StandInHub, stand_in_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[StandInHub]:
    with stand_in_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder of models. Hugging Face's cache is an empty folder."""
    models = tmp_path / "models"
    monkeypatch.setenv("RNN_ENGINE_MODELS", str(models))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path / "hf"), raising=False)
    return models
