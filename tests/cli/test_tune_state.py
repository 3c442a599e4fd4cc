"""`rnn-engine tune-state`: what it prints and writes, how it goes on after Ctrl-C, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rnn_engine.errors import DeviceError
from tests.support.cli import Command
from tests.support.interrupted_tuning import tuning_interrupted

SHORT = ("--device", "cpu", "--steps", 3, "--rate", 0.5, "--warm-up", 0, "--batch-size", 2, "--held-out", 0.4)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    records = [{"instruction": f"Question {number}", "output": "Arr! Aye."} for number in range(4)]
    path.write_text("".join(json.dumps(record) + "\n" for record in [*records, records[0]]))
    return path


def test_a_run_prints_its_losses_and_answers_and_writes_a_page(rnn_engine: Command, data: Path, tmp_path: Path) -> None:
    output, page = tmp_path / "pirate.safetensors", tmp_path / "report.html"
    said = rnn_engine("tune-state", data, "-o", output, "--report", page, *SHORT)
    assert "5 examples: " in said
    assert "come twice: 1: line 5" in said
    assert [line.split(":")[0] for line in said.splitlines() if ": held-out loss" in line] == [
        f"update {n}" for n in range(4)
    ]
    assert [line.split() for line in said.splitlines()].count(["wanted", "Arr!", "Aye."]) == 2
    assert f"the state is in {output}" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "pirate.safetensors", "report.html"]
    text = page.read_text()
    for part in ("pirate.safetensors: the initial state of demo.safetensors", "Arr! Aye.", "<polyline", "in 3 updates"):
        assert part in text
    assert "nan" not in text


def test_a_run_that_was_stopped_goes_on(rnn_engine: Command, data: Path, tmp_path: Path) -> None:
    whole, output = tmp_path / "whole" / "a.state", tmp_path / "a.state"
    whole.parent.mkdir()
    rnn_engine("tune-state", data, "-o", whole, *SHORT)
    with tuning_interrupted():
        said = rnn_engine("tune-state", data, "-o", output, *SHORT, code=130)
    assert "stopped; go on with: rnn-engine" in said
    assert "--resume" in said
    assert not output.exists()
    refused = rnn_engine("tune-state", data, "-o", output, *SHORT, code=2)
    assert "a.state.checkpoint is that of a run that has not ended; go on with --resume, or delete it" in refused
    rnn_engine("tune-state", data, "-o", output, *SHORT, "--resume")
    assert output.read_bytes() == whole.read_bytes()
    assert not output.with_name("a.state.checkpoint").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--resume", "-o", "a.st"], "--resume goes on from a.st.checkpoint, which does not exist"),
        (["-o", "a.bin"], "output: 'a.bin' is not allowed; expected a name that ends in"),
        (["-o", "a.st", "--rate", "fast"], "'fast'; expected auto, or a number greater than 0"),
        (["-o", "a.st", "--held-out", "2"], "'2'; expected auto, a share between 0 and 1, or a file"),
        (["-o", "a.st", "--held-out", "missing.jsonl"], "missing.jsonl can't be read: No such file or directory"),
        (["-o", "a.st", "--epochs", "2", "--steps", "3"], "epochs: 2.0 is not allowed"),
        (["-o", "a.st", "--max-tokens", "3"], "records with more than 3 tokens: 5: line 1; line 2; line 3"),
        (["more", "words", "-o", "a.st"], "3 arguments; expected DATA, or MODEL and DATA"),
        ([], "Missing option '-o' / '--output'"),
    ],
)
def test_refusals(rnn_engine: Command, data: Path, arguments: list[str], words: str) -> None:
    said = rnn_engine("tune-state", data, *arguments, "--device", "cpu", code=2)
    assert words in " ".join(said.replace("│", " ").split())


def test_a_state_with_shifts_needs_a_file_that_has_them(rnn_engine: Command, data: Path) -> None:
    said = rnn_engine("tune-state", data, "-o", "a.st", "--train-shifts", "--device", "cpu", code=1)
    assert "a.st: a file of tuned matrices has no token shifts, and this state has some" in said


def test_without_sample_answers_there_is_a_report(
    rnn_engine: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path, **settings: object) -> None:
        raise DeviceError(f"no room in {settings['device_memory']} bytes")

    monkeypatch.setattr("rnn_engine.cli.state_tuning.LLM", fail)
    output, page = tmp_path / "a.st", tmp_path / "report.html"
    said = rnn_engine("tune-state", data, "-o", output, "--report", page, "--device-memory", "8G", *SHORT)
    assert f"there are no sample answers: no room in {8 << 30} bytes" in said
    assert f"the state is in {output}" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.st", "data.jsonl", "report.html"]
