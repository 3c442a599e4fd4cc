"""Run lm-eval as its users do, from its own environment, and read its results."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TASK = "rnn_engine_demo"


@dataclass(frozen=True, slots=True)
class Sample:
    """lm-eval's results for one item."""

    context: str
    continuations: list[str]  # with the white space between them and the context
    loglikelihoods: list[float]
    label: int
    right: bool  # by lm-eval's acc


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one run of lm-eval."""

    samples: list[Sample]
    accuracy: float


def run(lm_eval: str, url: str, tokenizer: Path, folder: Path, model_args: str) -> Run:
    """Run the task against the server at `url`. Its files go into `folder`. Raises CalledProcessError if it fails."""
    fields = {"model": "demo", "base_url": f"{url}/v1/completions", "tokenizer": _tokenizer_folder(tokenizer, folder)}
    args = ",".join([*(f"{name}={value}" for name, value in fields.items()), *([model_args] if model_args else [])])
    output = folder / "output"
    command = [lm_eval, "run", "--model", "local-completions", "--model_args", args, "--tasks", TASK]
    command += ["--include_path", str(Path(__file__).parent), "--output_path", str(output), "--log_samples"]
    print(" ".join(command), flush=True)
    subprocess.run(command, check=True)
    [results], [samples] = output.rglob("results_*.json"), output.rglob(f"samples_{TASK}_*.jsonl")
    accuracy = json.loads(results.read_text())["results"][TASK]["acc,none"]
    return Run([_sample(json.loads(line)) for line in samples.read_text().splitlines()], accuracy)


def _tokenizer_folder(tokenizer: Path, folder: Path) -> Path:
    """Return a folder with tokenizer.json and the configuration with which lm-eval's library loads it."""
    target = folder / "tokenizer"
    target.mkdir()
    (target / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    [end] = [token["content"] for token in json.loads(tokenizer.read_text())["added_tokens"] if token["id"] == 0]
    (target / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": end}))
    return target


def _sample(line: dict[str, Any]) -> Sample:
    pairs = [line["arguments"][name] for name in sorted(line["arguments"])]
    return Sample(
        context=pairs[0]["arg_0"],
        continuations=[pair["arg_1"] for pair in pairs],
        loglikelihoods=[float(response[0][0]) for response in line["resps"]],
        label=line["doc"]["label"],
        right=bool(line["acc"]),
    )
