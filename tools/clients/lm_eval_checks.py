"""lm-eval: `local-chat-completions` generates, and `local-completions` scores with the server's own tokenizer.

`tools.lm_eval` checks that its scores are those of /v1/choices.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.clients.questions import MODEL, Checks

_TOOLS = Path(__file__).parents[1]
_ITEMS = 8


def _run(model: str, model_args: str, task: str, tasks: Path, metric: str, *options: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *(sys.executable, "-m", "lm_eval", "run", "--model", model, "--model_args", model_args, *options),
                *("--tasks", task, "--include_path", str(tasks), "--limit", str(_ITEMS), "--output_path", folder),
            ],
            check=True,
            capture_output=True,
        )
        [results] = Path(folder).rglob("results_*.json")
        found = json.loads(results.read_text())["results"][task]
    return f"{found['sample_len']} items, {metric} {found[f'{metric},none']}"


def _chat(url: str) -> str:
    args = f"model={MODEL},base_url={url}/chat/completions,num_concurrent=2"
    tasks = _TOOLS / "clients"
    return _run("local-chat-completions", args, "rnn_engine_chat", tasks, "exact_match", "--apply_chat_template")


def _scores(url: str) -> str:
    args = f"model={MODEL},base_url={url}/completions,tokenizer_backend=remote,num_concurrent=2"
    return _run("local-completions", args, "rnn_engine_demo", _TOOLS / "lm_eval", "acc")


CHECKS: Checks = {"`local-chat-completions`": _chat, "`local-completions`, remote tokenizer": _scores}
