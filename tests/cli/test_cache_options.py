"""The cache's options of `rnn-engine serve`, from the command line to the engine's settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rnn_engine.cli.session import EngineChoice
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from rnn_engine_states.shared.config import StoreConfig, StoreUrl
from tests.support.cli import Command
from tests.support.store_server import StoreServer

Settings = Callable[..., CacheConfig | None]


@pytest.fixture
def settings(rnn_engine: Command, model_file: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return a function from options of `serve` to the cache settings that the engine would be loaded with."""
    choices: list[EngineChoice] = []

    def run(load: partial[object], *_: object) -> None:
        choices.append(load.args[0])

    monkeypatch.setattr("rnn_engine.cli.serving.run", run)

    def ask(*options: object) -> CacheConfig | None:
        rnn_engine("serve", model_file, *options)
        return choices[-1].cache

    return ask


def test_without_options_the_defaults_hold(settings: Settings) -> None:
    assert settings() == CacheConfig()


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0", 0), ("4096", 4096), ("3k", 3 << 10), ("256M", 256 << 20), ("2G", 2 << 30), ("1T", 1 << 40)],
)
def test_sizes(settings: Settings, text: str, num_bytes: int) -> None:
    cache = settings("--cache-device-bytes", text, "--cache-host-bytes", text)
    assert cache == CacheConfig(device_capacity=num_bytes, host_capacity=num_bytes)


def test_files_and_precision(settings: Settings, tmp_path: Path) -> None:
    assert settings("--cache-folder", tmp_path) == CacheConfig(disk=DiskConfig(tmp_path))
    cache = settings("--cache-folder", tmp_path, "--cache-disk-bytes", "1M", "--cache-precision", "f16")
    assert cache == CacheConfig(host_precision="f16", disk=DiskConfig(tmp_path, 1 << 20, "f16"))


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5G", "1GB", "G", "1 M", "٣"])
def test_a_size_that_is_none(rnn_engine: Command, model_file: Path, text: str) -> None:
    said = rnn_engine("serve", model_file, "--cache-host-bytes", text, code=2)
    assert f"'--cache-host-bytes': {text!r}; expected a whole number of bytes, such as 0, 4096" in said


def test_room_for_files_without_a_folder(rnn_engine: Command, model_file: Path) -> None:
    said = rnn_engine("serve", model_file, "--cache-disk-bytes", "1G", code=2)
    assert "--cache-disk-bytes needs --cache-folder" in said


def test_a_folder_that_can_not_be_made(rnn_engine: Command, model_file: Path) -> None:
    said = rnn_engine("serve", model_file, "--device", "cpu", "--port", 0, "--cache-folder", model_file / "x", code=1)
    assert said.startswith(f"Error: cache folder {model_file / 'x'}: Not a directory")


def test_a_shared_store(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    url = StoreUrl.parse("valkey://:secret@host")
    assert settings("--store", url.text) == CacheConfig(store=StoreConfig(url))
    limits = ("--store-timeout", "0.5", "--store-ttl", "60", "--cache-precision", "f16")
    expected = StoreConfig(url, "f16", timeout=0.5, ttl=60)
    monkeypatch.setenv("RNN_ENGINE_STORE", url.text)
    assert settings(*limits) == CacheConfig(host_precision="f16", store=expected)


def test_a_store_that_is_none(rnn_engine: Command, model_file: Path) -> None:
    said = rnn_engine("serve", model_file, "--store", "http://:secret@host", code=2)
    assert (
        "store 'http://host': the scheme 'http' is unknown; expected valkey://[USER:PASSWORD@]HOST[:PORT][/DATABASE]"
        in said
    )
    assert "secret" not in said
    said = rnn_engine("serve", model_file, "--store-ttl", 5, code=2)
    assert "--store-ttl needs --store, the store of the shared states" in said


def test_a_store_that_refuses(rnn_engine: Command, model_file: Path, tmp_path: Path) -> None:
    server = StoreServer(tmp_path, "--requirepass", "sesame")
    try:
        url = server.url.replace("//", "//:wrong@")
        said = rnn_engine("serve", model_file, "--device", "cpu", "--port", 0, "--store", url, code=1)
        assert said.splitlines()[-1].startswith("Error: the store refuses the command: ")
    finally:
        server.kill()
