"""`rnn-engine pull` and `rnn-engine models`, and models by name in place of a path."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rnn_engine.engine import Engine
from rnn_engine.hub.download import Hub
from rnn_engine.loading.settings import LoadSettings
from tests.support.cli import Command
from tests.support.hf import hf_config, hf_tensors, save_folder
from tests.support.hub import StandInHub, stand_in_hub
from tests.support.models import random_model, tiny_shape

REPOSITORY = "someone/tiny-rwkv"
FILE = "tiny-20260101.safetensors"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RNN_ENGINE_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return an empty folder as Hugging Face's cache."""
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path / "hf"))
    return tmp_path / "hf"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, folder: Path, cache: Path, model_file: Path) -> Iterator[StandInHub]:
    with stand_in_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        running.repositories[REPOSITORY] = {FILE: model_file.read_bytes()}
        yield running


def test_a_pulled_model_is_listed_and_found_by_name(rnn_engine: Command, hub: StandInHub, folder: Path) -> None:
    assert rnn_engine("pull", REPOSITORY).strip() == str(folder / REPOSITORY / FILE)
    [row] = [line for line in rnn_engine("models").splitlines() if line.startswith(REPOSITORY)]
    assert row.split()[1] == "v7"
    assert str(folder / REPOSITORY / FILE) in row
    for name in (REPOSITORY, f"{REPOSITORY}:tiny-*"):
        assert json.loads(rnn_engine("inspect", name, "--json"))["version"] == "v7"


def test_a_short_name_is_pulled_and_found(rnn_engine: Command, hub: StandInHub, model_file: Path) -> None:
    hub.repositories["BlinkDL/rwkv7-g1"] = {"rwkv7-g1d-0.1b-20260129-ctx8192.pth": model_file.read_bytes()}
    rnn_engine("pull", "rwkv7-0.1b")
    assert json.loads(rnn_engine("inspect", "rwkv7-0.1b", "--json"))["version"] == "v7"


async def test_the_engine_loads_a_pulled_model_by_name(rnn_engine: Command, hub: StandInHub) -> None:
    rnn_engine("pull", REPOSITORY)
    async with await Engine.load(REPOSITORY, LoadSettings("cpu")) as engine:
        assert engine.info.shape.version == "v7"


@pytest.mark.parametrize(("num_shards", "torch"), [(1, False), (3, False), (1, True), (2, True)])
def test_a_folder_is_pulled_and_found_by_name(
    rnn_engine: Command, hub: StandInHub, tmp_path: Path, num_shards: int, torch: bool
) -> None:
    model = random_model(tiny_shape(), seed=1)
    folder = save_folder(
        tmp_path / "hf", hf_tensors(model, "fla"), hf_config(model, "fla"), num_shards=num_shards, torch=torch
    )
    hub.repositories[REPOSITORY] = {path.name: path.read_bytes() for path in folder.iterdir()}
    pulled = rnn_engine("pull", REPOSITORY).strip()
    found, named, expected = (
        json.loads(rnn_engine("inspect", name, "--json")) for name in (pulled, REPOSITORY, folder)
    )
    for key in ("version", "sizes", "tensors"):
        assert found[key] == named[key] == expected[key]
    assert REPOSITORY in rnn_engine("models")


def test_the_hubs_package_waits_until_it_is_asked_for() -> None:
    code = "import rnn_engine.cli.serve, sys; print('huggingface_hub' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_what_hugging_faces_cache_holds_is_found(
    rnn_engine: Command, hub: StandInHub, cache: Path, model_file: Path
) -> None:
    snapshot = cache / "models--other--tiny" / "snapshots" / ("d" * 40)
    snapshot.mkdir(parents=True)
    (cache / "models--other--tiny" / "refs").mkdir()
    (cache / "models--other--tiny" / "refs" / "main").write_text("d" * 40)
    (snapshot / FILE).write_bytes(model_file.read_bytes())
    assert str(snapshot / FILE) in rnn_engine("models")
    assert json.loads(rnn_engine("inspect", "other/tiny", "--json"))["version"] == "v7"


def test_a_file_that_is_no_model_is_listed_without_a_version(rnn_engine: Command, hub: StandInHub) -> None:
    hub.repositories[REPOSITORY] = {"other.gguf": b"GGUF" + bytes(100)}
    rnn_engine("pull", REPOSITORY)
    [row] = [line for line in rnn_engine("models").splitlines() if line.startswith(REPOSITORY)]
    assert row.split()[1] == "-"


@pytest.mark.parametrize("name", ["rwkv7-0.1b", "someone/else", "someone/else:*.pth"])
def test_a_model_that_was_not_pulled_is_told_with_the_command(
    rnn_engine: Command, folder: Path, cache: Path, name: str
) -> None:
    assert f"`rnn-engine pull {name}` fetches it" in rnn_engine("inspect", name, code=2)


def test_nothing_here(rnn_engine: Command, folder: Path, cache: Path) -> None:
    said = rnn_engine("models")
    assert "no models on this computer" in said
    assert "rwkv7-0.1b" in said


def test_errors_of_pull_are_one_line(rnn_engine: Command, hub: StandInHub) -> None:
    assert rnn_engine("pull", "no/such", code=1).count("\n") == 1
    assert "OWNER/REPOSITORY[:FILE]" in rnn_engine("pull", "such", code=2)


def test_ctrl_c_ends_a_download(rnn_engine: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Hub, "pull", interrupt)
    rnn_engine("pull", REPOSITORY, code=130)
