"""Checks of lm-eval against the server: `local-chat-completions` generates, and `local-completions` scores texts.

Texts are scored with the server's own tokenizer. The tasks are defined in this folder. `rnn_engine` runs them on an
engine in lm-eval's own process, without the server.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.clients.questions import MODEL, Checks

_ITEMS = 8


def _run(model: str, model_args: str, task: str, metric: str, *options: str) -> str:
    """Run lm-eval on some items of a task. Raises CalledProcessError if it fails."""
    module = "rnn_engine.compat.lm_eval" if model == "rnn_engine" else "lm_eval"
    command = [sys.executable, "-m", module, "run", "--model", model, "--model_args", model_args, "--tasks", task]
    with TemporaryDirectory() as folder:
        paths = ["--include_path", str(Path(__file__).parent), "--output_path", folder]
        subprocess.run([*command, *paths, "--limit", str(_ITEMS), *options], check=True, stdout=sys.stderr)
        [results] = Path(folder).rglob("results_*.json")
        found = json.loads(results.read_text())["results"][task]
    return f"{found['sample_len']} items, {metric} {found[f'{metric},none']}"


def _chat(url: str) -> str:
    args = f"model={MODEL},base_url={url}/chat/completions,num_concurrent=2"
    return _run("local-chat-completions", args, "rnn_engine_chat", "exact_match", "--apply_chat_template")


def _scores(url: str) -> str:
    args = f"model={MODEL},base_url={url}/completions,tokenizer_backend=remote,num_concurrent=2"
    return _run("local-completions", args, "rnn_engine_choices", "acc")


def _in_process(_url: str) -> str:
    scored = _run("rnn_engine", f"model={MODEL}", "rnn_engine_choices", "acc")
    return (
        f"{scored}; {_run('rnn_engine', f'model={MODEL}', 'rnn_engine_chat', 'exact_match', '--apply_chat_template')}"
    )


CHECKS: Checks = {
    "`local-chat-completions`": _chat,
    "`local-completions`, remote tokenizer": _scores,
    "`rnn_engine`, in process": _in_process,
}
