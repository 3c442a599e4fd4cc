"""`rnn-engine tune-lora`: what it prints and writes, how it goes on after Ctrl-C, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import Command
from tests.support.interrupted_tuning import tuning_interrupted

SHORT = ("--device", "cpu", "--steps", 3, "--rate", 0.02, "--warm-up", 0, "--batch-size", 2, "--held-out", 0.4)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    records = [{"instruction": f"Question {number}", "output": "Arr! Aye."} for number in range(5)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_run_that_was_stopped_goes_on(rnn_engine: Command, data: Path, tmp_path: Path) -> None:
    whole, output, page = tmp_path / "whole" / "a.safetensors", tmp_path / "a.safetensors", tmp_path / "report.html"
    whole.parent.mkdir()
    options = (*SHORT, "--rank", 3, "--alpha", 5, "--targets", "att,ffn.key")
    said = rnn_engine("tune-lora", data, "-o", whole, "--report", page, *options)
    beside = f"or beside others with --max-loras 4 --state {whole}"
    assert f"the LoRA is in {whole}; use it with --lora {whole}, {beside}\n" in said
    assert [line.split() for line in said.splitlines()].count(["wanted", "Arr!", "Aye."]) == 2
    assert "a.safetensors: a LoRA for demo.safetensors" in page.read_text()
    with tuning_interrupted():
        assert "--resume" in rnn_engine("tune-lora", data, "-o", output, *options, code=130)
    refused = rnn_engine("tune-lora", data, "-o", output, *options, "--rank", 4, "--resume", code=1)
    assert "belongs to a run with LoRA {'alpha': 5.0, 'init': 'lora', 'rank': 3, " in refused
    rnn_engine("tune-lora", data, "-o", output, *options, "--resume")
    assert output.read_bytes() == whole.read_bytes()


def test_a_state_beside_a_lora_of_singular_values(rnn_engine: Command, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "a.state"
    options = ("--rank", 9, "--init", "pissa", "--train-state")
    said = rnn_engine("tune-lora", data, "-o", output, *SHORT, *options)
    use = f"use it with --max-loras 4 --max-lora-rank 18 --state {output}"
    assert f"the LoRA is in {output}; {use}\n" in said
    assert [line.split() for line in said.splitlines()].count(["wanted", "Arr!", "Aye."]) == 2
    room = ("--max-loras", 1, "--max-lora-rank", 18)
    rnn_engine("generate", "Hi", "--device", "cpu", "--state", output, "--max-tokens", 2, *room)


def test_a_lora_with_vectors_is_merged_for_the_samples(rnn_engine: Command, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "a.pth"
    said = rnn_engine("tune-lora", data, "-o", output, *SHORT, "--train-vectors")
    assert f"the LoRA is in {output}; use it with --lora {output}:32\n" in said
    assert [line.split() for line in said.splitlines()].count(["wanted", "Arr!", "Aye."]) == 2
    rnn_engine("generate", "Hi", "--device", "cpu", "--lora", f"{output}:32", "--max-tokens", 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--targets", "att,emb"], "targets: 'emb' is not allowed; expected some of att, ffn, att.key, att.output,"),
        (["--targets", ""], "targets: '' is not allowed; expected some of att, ffn, att.key, att.output,"),
        (["--rank", "0"], "0 is not in the range 1<=x<=512"),
        (["--rank", "10000"], "10000 is not in the range 1<=x<=512"),
        (["--alpha", "0"], "0.0 is not in the range x>0"),
        (["--alpha", "nan"], "nan"),
        (["--init", "svd"], "'svd' is not one of 'lora', 'pissa'"),
        (["--init", "pissa", "--rank", "129"], "rank: 129 is not allowed; expected at most 128, as many singular"),
        (["--train-state"], "output: 'a.pth' is not allowed; expected a name that ends in .state"),
        (["--train-state", "--train-vectors"], "train_vectors: True is not allowed; expected false with train_state"),
        (["-o", "a.st"], "output: 'a.st' is not allowed; expected a name that ends in .safetensors, .pth, or has no"),
        (["-o", "a", "--train-vectors"], "output: 'a' is not allowed; expected a name that ends in .safetensors or"),
    ],
)
def test_refusals(rnn_engine: Command, data: Path, arguments: list[str], words: str) -> None:
    said = rnn_engine("tune-lora", data, "-o", "a.pth", *SHORT, *arguments, code=2)
    assert words in " ".join(said.replace("│", " ").split())
