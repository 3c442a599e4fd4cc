"""A small model as a file, and the command line."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rnn_engine.cli import main
from rnn_engine.cli.session import EngineChoice
from tests.support.cli import Command
from tests.support.fake_engine import FakeEngine
from tests.support.models import TensorModel, random_model, save_safetensors, tiny_shape


@pytest.fixture(scope="session")
def tiny_model() -> TensorModel:
    return random_model(tiny_shape(vocab=96), seed=5)


@pytest.fixture(scope="session")
def model_file(tiny_model: TensorModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    save_safetensors(tiny_model, path, "f32")
    return path


@pytest.fixture
def rnn_engine(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs `rnn-engine` with arguments and, optionally, a text on standard input."""
    monkeypatch.setattr(gc, "freeze", lambda: None)  # `serve` would keep what earlier tests left from being freed

    def run(*arguments: object, stdin: str | None = None, code: int = 0) -> str:
        result = CliRunner().invoke(
            main, [str(argument) for argument in arguments], input=stdin, prog_name="rnn-engine"
        )
        assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
        return result.output

    return run


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeEngine], list[EngineChoice]]:
    """Return a function that replaces loading by a fake engine. It returns the list of choices that it should load."""

    def put(engine: FakeEngine) -> list[EngineChoice]:
        choices: list[EngineChoice] = []

        async def load(choice: EngineChoice) -> FakeEngine:
            choices.append(choice)
            return engine

        monkeypatch.setattr("rnn_engine.cli.session.load_engine", load)
        return choices

    return put
