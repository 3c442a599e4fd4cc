"""The parts of `rnn-engine fleet` that need no Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnn_engine.cli.replicas import load_replica
from rnn_engine.cli.session import EngineChoice
from rnn_engine.fleet.settings import ReplicaPlace
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from tests.support.cli import Command


def test_without_ray_it_says_what_to_install(rnn_engine: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine.cli.serve.find_spec", lambda name: None)
    assert "Ray is not installed; run pip install 'rnn-engine[fleet]'" in rnn_engine("fleet", code=2)


async def test_each_replica_has_its_own_folder_and_no_named_states(model_file: Path, tmp_path: Path) -> None:
    cache = CacheConfig(disk=DiskConfig(tmp_path / "cache"))
    choice = EngineChoice(model_file, LoadSettings("cpu", "none"), 2, cache, StateSettings(folder=tmp_path / "states"))
    engine = await load_replica(choice, ReplicaPlace(3))
    assert engine.info.folders == {"cache": tmp_path / "cache" / "replica-3"}
    await engine.close()
