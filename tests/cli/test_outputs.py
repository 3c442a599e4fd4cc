"""No command overwrites what it reads, or deletes what it did not write."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from tests.support.cli import Command
from tests.support.models import random_model, save_safetensors, tiny_shape

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


def test_two_outputs_are_two_files(rnn_engine: Command, tmp_path: Path) -> None:
    data, out = tmp_path / "data.jsonl", tmp_path / "out.safetensors"
    data.write_text('{"text": "a"}')
    said = rnn_engine("tune-state", data, "-o", out, "--report", tmp_path / "." / "out.safetensors", code=2)
    assert "--report, too; expected two files" in said or "FILE, too; expected two files" in said
    assert not out.exists()


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
