"""The limits of requests, from the command line to the server's settings."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

import pytest

from rnn_engine.cli.options import parameters_of
from rnn_engine.cli.serve import serve_command as serve_command
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine_server.core.settings import Limits, ServerSettings
from rnn_engine_states.cache.config import CacheConfig
from tests.support.cli import Command


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Limits]:
    """Return the list of limits of the servers that would have been started."""
    found: list[Limits] = []

    def run(_load: object, settings: ServerSettings, _on_ready: object) -> None:
        found.append(settings.limits)

    monkeypatch.setattr("rnn_engine.cli.serving.run", run)
    return found


def test_without_options_the_defaults_hold(rnn_engine: Command, model_file: Path, served: list[Limits]) -> None:
    rnn_engine("serve", model_file)
    assert served == [Limits()]


def test_every_limit_is_an_option(rnn_engine: Command, model_file: Path, served: list[Limits]) -> None:
    wanted = {one.name: 1000 + number for number, one in enumerate(fields(Limits))}
    options = [word for name, value in wanted.items() for word in (f"--{name.replace('_', '-')}", value)]
    rnn_engine("serve", model_file, *options)
    assert asdict(served[0]) == wanted


def test_every_setting_of_a_server_is_an_option() -> None:
    names = {parameter.name for parameter in serve_command.params}
    for settings in (ServerSettings, LoadSettings, StateSettings, CacheConfig):
        assert set(parameters_of(settings)) <= names


def test_bytes_may_have_a_unit(rnn_engine: Command, model_file: Path, served: list[Limits]) -> None:
    rnn_engine("serve", model_file, "--max-body-bytes", "3M")
    assert served == [Limits(max_body_bytes=3 * 2**20)]
