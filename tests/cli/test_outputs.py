"""No command overwrites what it reads, or deletes what it did not write."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rnn_engine.cli.session import EngineChoice
from tests.support.cli import Command
from tests.support.fake_engine import FakeEngine
from tests.support.models import random_model, save_safetensors, tiny_shape

Install = Callable[[FakeEngine], list[EngineChoice]]
LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 1}}
SPELLINGS = ["same", "dots", "link", "hard link"]


def spell(path: Path, how: str) -> Path:
    other = path.with_name(f"other{path.suffix}")
    match how:
        case "dots":
            return path.parent / ".." / path.parent.name / "." / path.name
        case "link":
            other.symlink_to(path.name)
            return other
        case "hard link":
            os.link(path, other)
            return other
    return path


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that a folder for flash-linear-attention can hold."""
    return save_safetensors(
        random_model(tiny_shape(head_size=64), seed=0), tmp_path_factory.mktemp("model") / "m.st", "f32"
    )


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(LINE))
    return path


@pytest.mark.parametrize("how", SPELLINGS)
def test_a_batch_does_not_write_over_its_requests(rnn_engine: Command, requests: Path, how: str) -> None:
    before = requests.read_bytes()
    for options in (
        ["-o", spell(requests, how)],
        ["-o", requests.with_name("out"), "--errors", spell(requests, "same")],
    ):
        said = rnn_engine("batch", requests, *options, code=2)
        assert "is what the command reads" in said
        assert requests.read_bytes() == before


def test_two_outputs_are_two_files(rnn_engine: Command, requests: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    said = rnn_engine("batch", requests, "-o", out, "--errors", tmp_path / "." / "out.jsonl", code=2)
    assert "ERRORS, too; expected two files" in said or "OUT, too; expected two files" in said
    assert not out.exists()


@pytest.mark.parametrize("name", ["mine.txt", "out.errors.jsonl"])
def test_a_batch_without_a_failure_deletes_nothing(
    rnn_engine: Command, requests: Path, tmp_path: Path, install: Install, name: str
) -> None:
    install(FakeEngine())
    (tmp_path / name).write_text("mine")
    rnn_engine("batch", requests, "-o", tmp_path / "out.jsonl", "--errors", tmp_path / name)
    assert (tmp_path / name).read_text() == "mine"
    assert json.loads((tmp_path / "out.jsonl").read_text())["custom_id"] == "a"


SHORT = ("--device", "cpu", "--slots", 1, "--lengths", 2, "--repeats", 1)


def commands(model: Path, data: Path, output: Path) -> dict[str, list[object]]:
    return {
        "tune-state -o": ["tune-state", model, data, "-o", output],
        "tune-state --report": ["tune-state", model, data, "-o", data.with_name("s.state"), "--report", output],
        "tune-lora -o": ["tune-lora", model, data, "-o", output],
        "bench": ["bench", model, "--report", output],
        "convert": ["convert", model, output, "--force"],
    }


@pytest.mark.parametrize("name", commands(Path("m"), Path("d"), Path("o")))
@pytest.mark.parametrize("how", SPELLINGS)
def test_no_command_writes_over_what_it_reads(
    rnn_engine: Command, model_file: Path, tmp_path: Path, name: str, how: str
) -> None:
    model, data = tmp_path / "m.safetensors", tmp_path / "data.jsonl"
    model.write_bytes(model_file.read_bytes())
    data.write_text(json.dumps({"text": "a"}))
    read = data if name.startswith("tune") else model
    before = read.read_bytes()
    assert "is what the command reads" in rnn_engine(*commands(model, data, spell(read, how))[name], code=2)
    assert read.read_bytes() == before


def test_a_model_in_a_folder_is_not_written_over(rnn_engine: Command, model_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "rwkv7-0.1B-g1"
    rnn_engine("convert", model_file, folder)
    before = (folder / "model.safetensors").read_bytes()
    said = rnn_engine("convert", folder, folder / "model.safetensors", "--force", code=2)
    assert "is what the command reads" in said
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
def test_a_pipe_and_a_device_are_written_in_place(rnn_engine: Command, model_file: Path, tmp_path: Path) -> None:
    pipe, null = tmp_path / "pipe", tmp_path / "null.html"
    os.mkfifo(pipe)
    null.symlink_to(os.devnull)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    rnn_engine("bench", model_file, *SHORT, "--report", pipe)
    reader.join()
    assert read[0].startswith(b"<!doctype html>")
    assert pipe.is_fifo()
    rnn_engine("bench", model_file, *SHORT, "--report", null)
    assert null.is_symlink()
    assert Path(os.devnull).is_char_device()


def test_a_link_stays_and_its_file_is_replaced(rnn_engine: Command, model_file: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "kept" / "a.html", tmp_path / "a.html"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    rnn_engine("bench", model_file, *SHORT, "--report", link)
    assert link.is_symlink()
    assert target.read_bytes().startswith(b"<!doctype html>")
    assert [path.name for path in target.parent.iterdir()] == ["a.html"]


def test_convert_writes_into_an_empty_folder(rnn_engine: Command, model_file: Path, tmp_path: Path) -> None:
    (tmp_path / "new.gguf").mkdir()
    rnn_engine("convert", model_file, tmp_path / "new.gguf")
    assert (tmp_path / "new.gguf" / "config.json").is_file()
