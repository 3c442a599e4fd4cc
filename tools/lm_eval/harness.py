"""Run lm-eval as a user would, from its own environment, and read its results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TASK = "rnn_engine_demo"


@dataclass(frozen=True, slots=True)
class Sample:
    """One item of the task, with lm-eval's scores for it."""

    context: str
    continuations: list[str]  # as they follow the context
    loglikelihoods: list[float]
    label: int
    right: bool  # by lm-eval's acc


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one run of lm-eval: all samples, and the accuracy."""

    samples: list[Sample]
    accuracy: float


def run(lm_eval: str, url: str, tokenizer: Path, folder: Path, model_args: str) -> Run:
    """Run the task of this folder against the server at `url`, and return its results. Writes files into `folder`.

    Raises CalledProcessError if lm-eval fails.
    """
    args = f"model=demo,base_url={url}/v1/completions,tokenizer={_tokenizer_folder(tokenizer, folder)}"
    args += f",{model_args}" if model_args else ""
    output, tasks = folder / "output", Path(__file__).parent
    found = run_task([lm_eval], "local-completions", args, TASK, tasks, output, "--log_samples")
    [samples] = output.rglob(f"samples_{TASK}_*.jsonl")
    return Run([_sample(json.loads(line)) for line in samples.read_text().splitlines()], found["acc,none"])


def run_task(
    command: Sequence[str], model: str, model_args: str, task: str, tasks: Path, output: Path, *options: str
) -> dict[str, Any]:
    """Run lm-eval on a task that the folder `tasks` defines, and return the task's metrics.

    Raises CalledProcessError if lm-eval fails.
    """
    arguments = [*command, "run", "--model", model, "--model_args", model_args, "--tasks", task, *options]
    arguments += ["--include_path", str(tasks), "--output_path", str(output)]
    print(" ".join(arguments), file=sys.stderr, flush=True)
    subprocess.run(arguments, check=True, stdout=sys.stderr)
    [results] = output.rglob("results_*.json")
    found: dict[str, Any] = json.loads(results.read_text())["results"][task]
    return found


def _tokenizer_folder(tokenizer: Path, folder: Path) -> Path:
    """Create a folder with tokenizer.json, and with the configuration that lm-eval's library needs to load it.

    Return the folder.
    """
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
