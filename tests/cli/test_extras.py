"""Without the packages of the extras, commands work that don't need them, and the others name the extra."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from rnn_engine.cli import main
from rnn_engine.errors import DeviceError
from rnn_engine.gpu import native, open_device
from tests.support.distributions import absent_modules

RUN = """
import json, sys
from click.testing import CliRunner
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # makes importing them fail
from rnn_engine.cli import main
from rnn_engine.errors import DeviceError
from rnn_engine.gpu import native, open_device
results = [CliRunner().invoke(main, arguments, prog_name="rnn-engine") for arguments in json.load(sys.stdin)]
print(json.dumps([[result.exit_code, result.output] for result in results]))
"""


def run_without(*commands: Sequence[object]) -> list[tuple[int, str]]:
    """Run commands in a process that has the plain installation alone, and return their exit codes and outputs."""
    given = json.dumps([list(map(str, command)) for command in commands])
    command = [sys.executable, "-c", RUN, *absent_modules()]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [(code, output) for code, output in json.loads(done.stdout)]


def needs(what: str, extra: str) -> str:
    return f"{what} needs the packages of the extra `{extra}`: pip install 'rnn-engine[{extra}]'\n"


def test_a_plain_installation_has_all_commands_and_the_rest_names_its_extra(model_file: Path, tmp_path: Path) -> None:
    working: list[Sequence[object]] = [
        ["--help"],
        *((name, "--help") for name in main.list_commands(click.Context(main))),
        ["generate", "Hi", "--device", "cpu", "--max-tokens", 2],
        ["inspect", model_file],
        ["convert", model_file, tmp_path / "a.pth"],
        ["convert", model_file, tmp_path / "a.gguf"],
        ["devices"],
        ["key", "ann"],
        ["models"],
    ]
    refused: list[tuple[Sequence[object], str]] = [
        (["serve", "--device", "cpu", "--store", "valkey://127.0.0.1:9"], needs("a shared store", "store")),
        (["fleet"], "'rnn-engine[fleet]'"),
    ]
    results = run_without(*working, *(command for command, _ in refused))
    answers, refusals = results[: len(working)], results[len(working) :]
    assert [code for code, _ in answers] == [0] * len(working), answers
    for (code, output), (_, message) in zip(refusals, refused, strict=True):
        assert code != 0
        assert message in output


def test_python_works_with_a_plain_installation() -> None:
    script = "import sys\nsys.modules.update(dict.fromkeys(sys.argv[1:]))\n"
    script += "import rnn_engine.cli.serving, rnn_engine.cli.chat.terminal, rnn_engine.hub.download\n"
    script += "from rnn_engine import LLM\nwith LLM(device='cpu') as llm: print(llm.chat('What is 2 + 3?'))"
    done = subprocess.run(
        [sys.executable, "-c", script, *absent_modules()], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_the_processor_needs_no_wgpu(device: str) -> None:
    script = "import sys\nsys.modules['wgpu'] = None\nfrom rnn_engine import LLM\n"
    script += f"with LLM(device={device!r}) as llm: print(llm.chat('What is 2 + 3?'))\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr


def test_a_gpu_without_wgpu_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "gpu_errors", ())
    monkeypatch.setitem(sys.modules, "wgpu", None)
    with pytest.raises(DeviceError, match="the package wgpu can't be loaded"):
        open_device("0")


def test_wgpu_is_not_imported_for_the_processor() -> None:
    script = "import sys\nfrom rnn_engine import LLM\nwith LLM(device='cpu'): print('wgpu' in sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
