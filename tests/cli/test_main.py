"""The command line as a whole: help, errors, exit codes."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rnn_engine.cli import main
from rnn_engine.errors import ModelError
from rnn_engine.gpu import DeviceInfo
from tests.support.cli import Command
from tests.support.processes import ROOT

COMMANDS = [
    "serve",
    "fleet",
    "chat",
    "generate",
    "batch",
    "devices",
    "pull",
    "models",
    "inspect",
    "convert",
    "bench",
    "tune-state",
    "tune-lora",
    "tune-kernels",
    "key",
]


def test_help_lists_every_command(rnn_engine: Command) -> None:
    lines = rnn_engine("--help").partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines] == COMMANDS
    assert all(len(line.split()) > 3 and not line.endswith("...") for line in lines)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_explains_itself(rnn_engine: Command, name: str) -> None:
    assert f"rnn-engine {name}" in rnn_engine(name, "-h")
    context = main.make_context("rnn-engine", [name, "--help"], resilient_parsing=True)
    command = main.get_command(context, name)
    assert command is not None
    for parameter in command.get_params(context):
        record = parameter.to_info_dict()
        assert record["param_type_name"] == "argument" or record["help"]


def test_serve_has_the_defaults_that_clients_expect() -> None:
    context = main.make_context("rnn-engine", [], resilient_parsing=True)
    command = main.get_command(context, "serve")
    assert command is not None
    defaults = {parameter.name: parameter.default for parameter in command.params}
    assert {name: defaults[name] for name in ("host", "port", "device", "tokenizer", "slots")} == {
        "host": "127.0.0.1",
        "port": 65530,
        "device": "auto",
        "tokenizer": "auto",
        "slots": 8,
    }


@pytest.mark.parametrize("arguments", [["bake"], ["generate", "--colour", "red"], ["serve", "--port", "70000"]])
def test_wrong_usage_ends_with_code_2(rnn_engine: Command, arguments: list[str]) -> None:
    assert "Error: " in rnn_engine(*arguments, code=2)


def test_missing_model_file_is_one_line(rnn_engine: Command, tmp_path: Path) -> None:
    path = tmp_path / "no.safetensors"
    said = rnn_engine("bench", path, "--device", "cpu", code=1)
    assert said.startswith("Error: ")
    assert str(path) in said
    assert said.count("\n") == 1


def test_unknown_device_is_one_line(rnn_engine: Command, model_file: Path) -> None:
    said = rnn_engine("bench", model_file, "--device", "abacus", code=1)
    assert said.startswith("Error: ")
    assert "'abacus'" in said


def test_debug_shows_where_an_error_came_from(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--debug", "bench", str(tmp_path / "no.safetensors"), "--device", "cpu"])
    assert isinstance(result.exception, (ModelError, OSError))


def test_no_model_of_its_own(rnn_engine: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "demo.safetensors"
    monkeypatch.setattr("rnn_engine.cli.options.model_path", lambda: missing)
    assert f"the model that comes with rnn-engine is missing: {missing}" in rnn_engine("bench", code=2)


def test_own_model_is_the_default(rnn_engine: Command, model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine.cli.options.model_path", lambda: model_file)
    said = rnn_engine("bench", "--device", "cpu", "--slots", "1", "--lengths", "1", "--repeats", "1")
    assert said.startswith("tiny.safetensors: ")


def test_ctrl_c_ends_with_code_130(rnn_engine: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> list[DeviceInfo]:
        raise KeyboardInterrupt

    monkeypatch.setattr("rnn_engine.gpu.list_devices", interrupt)
    rnn_engine("devices", code=130)


def test_devices(rnn_engine: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    device = DeviceInfo(index=0, name="Fast One", kind="discrete", backend="Vulkan", driver="1.2.3")
    monkeypatch.setattr("rnn_engine.gpu.list_devices", lambda: [device])
    header, row, cpu = rnn_engine("devices").splitlines()
    assert header.split() == ["index", "name", "kind", "backend", "driver"]
    assert row.split() == ["0", "Fast", "One", "discrete", "Vulkan", "1.2.3"]
    assert cpu.startswith("cpu: ")


def test_no_devices(rnn_engine: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine.gpu.list_devices", list)
    hint, cpu = rnn_engine("devices").splitlines()
    assert "mesa-vulkan-drivers" in hint
    assert cpu.startswith("cpu: ")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_numbers_in_a_range_are_finite(name: str, number: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    for parameter in command.params:
        if isinstance(parameter.type, click.FloatRange):
            with pytest.raises(click.BadParameter):
                parameter.type(number, parameter)


@pytest.mark.parametrize(
    ("shortage", "said"),
    [
        (MemoryError(), "Error: this computer is out of memory\n"),
        (
            RuntimeError("can't start new thread"),
            "Error: this computer is out of threads or memory: can't start new thread\n",
        ),
        (
            ImportError("x.so: failed to map segment"),
            "Error: a Python module can't be loaded: x.so: failed to map segment\n",
        ),
    ],
)
def test_a_shortage_is_one_line(
    rnn_engine: Command, monkeypatch: pytest.MonkeyPatch, shortage: Exception, said: str
) -> None:
    """Check errors as under a memory limit. The last one comes from a library that a command can't load."""

    def fail(*_: object) -> None:
        raise shortage

    monkeypatch.setattr("rnn_engine.gpu.list_devices", fail)
    assert rnn_engine("devices", code=1) == said
    result = CliRunner().invoke(main, ["--debug", "devices"])
    assert result.exception is shortage


def test_an_output_that_is_no_longer_read_is_no_error(rnn_engine: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("rnn_engine.gpu.list_devices", fail)
    assert rnn_engine("devices", code=1) == ""


def test_an_error_of_the_program_is_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("rnn_engine.gpu.list_devices", fail)
    assert isinstance(CliRunner().invoke(main, ["devices"]).exception, RuntimeError)


IMPORTING = """
import importlib, sys, time

def import_slowly(name):
    print("importing", flush=True)
    time.sleep(60)

importlib.import_module = import_slowly
from rnn_engine.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        ("serve", signal.SIGTERM, 0),
        ("serve", signal.SIGINT, 0),
        ("serve", signal.SIGHUP, 0),
        ("fleet", signal.SIGTERM, 0),
        ("bench", signal.SIGTERM, -signal.SIGTERM),
    ],
)
def test_a_signal_ends_a_server_with_code_0_also_while_it_is_imported(command: str, number: int, code: int) -> None:
    def prepare() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the parent process may have set it to be ignored

    arguments = [sys.executable, "-c", IMPORTING, command]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, preexec_fn=prepare) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"importing\n"
            process.send_signal(number)
            assert process.wait(20) == code
        finally:
            process.kill()


def test_a_misspelt_file_is_told_with_the_one_that_is_there(
    rnn_engine: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sir.safetensors").touch()
    for name in ("sir.safetenors", str(tmp_path / "sir.safetenors")):
        options = ("--device", "cpu", "--state", name)
        said = rnn_engine("generate", "demo", "hi", *options, code=1)
        assert f"did you mean {name.replace('tenors', 'tensors')}?" in " ".join(said.split())
        assert "did you mean" in rnn_engine("inspect", f"./{Path(name).name}", code=1)
    assert "did you mean" not in rnn_engine("generate", "demo", "hi", "--state", tmp_path / "x", code=1)


def test_a_command_leaves_the_handlers_of_signals_as_they_were(rnn_engine: Command) -> None:
    before = signal.getsignal(signal.SIGTERM)
    rnn_engine("serve", "--help")
    rnn_engine("serve", "no-such-model", code=1)
    assert signal.getsignal(signal.SIGTERM) is before
