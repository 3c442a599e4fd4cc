"""States on the command line: those that a server begins with, and commands that start from a file."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rnn_engine.cli.session import EngineChoice
from rnn_engine.demo import model_path, pirate_state_path
from rnn_engine.loading.settings import StateFile, StateSettings
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.frozen import freeze_state
from tests.support.cli import Command
from tests.support.models import TensorModel
from tests.support.named_states import save_tuned_state, some_state

Settings = Callable[..., StateSettings]


@pytest.fixture
def settings(rnn_engine: Command, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return a function from arguments of `serve` to the states that the engine would begin with."""
    choices: list[EngineChoice] = []

    def run(load: partial[object], *_: object) -> None:
        choices.append(load.args[0])

    monkeypatch.setattr("rnn_engine.cli.serving.run", run)

    def ask(*arguments: object) -> StateSettings:
        rnn_engine("serve", *arguments)
        return choices[-1].states

    return ask


@pytest.fixture
def state_file(tiny_model: TensorModel, tmp_path: Path) -> Path:
    path = tmp_path / "state.safetensors"
    save_tuned_state(path, some_state(1, tiny_model.shape), tiny_model.shape)
    return path


def test_a_server_begins_with_what_it_is_given(settings: Settings, tmp_path: Path) -> None:
    assert settings("m.st") == StateSettings(())
    given = settings(
        "m.st", "--state", "a=x.st", "--state", "b c=y=z.pth", "--state", "poet.st", "--default-state", "a",
        "--state-folder", "folder",
        "--state-bytes", "2M", "--state-file-folder", tmp_path, "--any-model-states",
    )  # fmt: skip
    files = (StateFile(Path("x.st"), "a"), StateFile(Path("y=z.pth"), "b c"), StateFile(Path("poet.st")))
    assert given == StateSettings(files, "a", Path("folder"), tmp_path, 2 << 20, any_model=True)


def test_the_demo_model_comes_with_a_state_to_try(settings: Settings, tmp_path: Path) -> None:
    pirate = StateFile(pirate_state_path(), "pirate")
    assert settings() == settings(model_path()) == StateSettings([pirate])
    mine = StateFile(Path("x.st"), "mine")
    assert settings("--state", "mine=x.st").files == [mine, pirate]
    assert settings("--state", "pirate=x.st").files == (StateFile(Path("x.st"), "pirate"),)
    assert settings("--state", "my/pirate.st").files == (StateFile(Path("my/pirate.st")),)
    odd = tmp_path / "a=b.st"
    odd.write_bytes(b"")
    assert settings("m.st", "--state", odd).files == (StateFile(odd),)


@pytest.mark.parametrize("text", ["=x.st", "a=", "none=x.st", "a/b=x.st"])
def test_what_names_no_state_is_refused(rnn_engine: Command, text: str) -> None:
    said = rnn_engine("serve", "m.st", "--state", text, code=2)
    assert "--state" in said
    assert "expected" in said


def test_a_state_that_is_missing_ends_the_start(rnn_engine: Command, model_file: Path) -> None:
    said = rnn_engine("serve", model_file, "--device", "cpu", "--port", 0, "--state", "a=no.st", code=1)
    assert said.splitlines()[-1] == "Error: no.st can't be read: No such file or directory"


def test_generate_starts_from_a_state(rnn_engine: Command, model_file: Path, state_file: Path) -> None:
    arguments = ("generate", model_file, "--tokens", "1,2,3", "--max-tokens", 8, "--temperature", 0, "--device", "cpu")
    plain, from_state = rnn_engine(*arguments), rnn_engine(*arguments, "--state", state_file)
    assert re.fullmatch(r"(\d+ ){1,8}\n", from_state)
    assert plain != from_state


def test_generate_starts_from_an_empty_state(rnn_engine: Command, model_file: Path) -> None:
    arguments = ("generate", model_file, "--tokens", "1,2,3", "--max-tokens", 8, "--temperature", 0, "--device", "cpu")
    assert rnn_engine(*arguments, "--state", "none") == rnn_engine(*arguments)


@pytest.mark.parametrize(
    ("state", "name"),
    [("pirate", "pirate"), (str(pirate_state_path()), "pirate-2"), (f"mate={pirate_state_path()}", "mate")],
)
def test_chat_starts_from_a_state(rnn_engine: Command, state: str, name: str) -> None:
    said = rnn_engine(
        "chat", "--device", "cpu", "--temperature", 0, "--state", state,
        stdin="What is the capital of France?\n/state\n",
    )  # fmt: skip
    assert "Arr!" in said
    assert f"* {name}\n" in said


@pytest.mark.parametrize("command", ["chat", "generate --tokens 1"])
def test_a_state_of_another_model_is_refused_unless_any_is_allowed(
    rnn_engine: Command, model_file: Path, tiny_model: TensorModel, tmp_path: Path, command: str
) -> None:
    state = tmp_path / "other.state"
    files = StateFiles(tiny_model.shape, "another")
    files.save(state, "other", freeze_state(tiny_model.shape.initial_state(), tiny_model.shape, "a state"))
    name, *rest = command.split()
    words = (name, model_file, *rest, "--device", "cpu", "--state", state)
    said = rnn_engine(*words, code=1, stdin="")
    assert "other.state: the state belongs to model another" in said
    assert "--any-model-states" in said
    rnn_engine(*words, "--any-model-states", stdin="")
