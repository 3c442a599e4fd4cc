"""Checks of lm-eval against the server: `local-chat-completions` generates, and `local-completions` scores texts.

Texts are scored with the server's own tokenizer. `tools.lm_eval` checks that its scores are those of /v1/choices.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.clients.questions import MODEL, Checks
from tools.lm_eval.harness import TASK, run_task

_TOOLS = Path(__file__).parents[1]
_ITEMS = 8


def _run(model: str, model_args: str, task: str, tasks: Path, metric: str, *options: str) -> str:
    command = [sys.executable, "-m", "lm_eval"]
    with TemporaryDirectory() as folder:
        found = run_task(command, model, model_args, task, tasks, Path(folder), "--limit", str(_ITEMS), *options)
    return f"{found['sample_len']} items, {metric} {found[f'{metric},none']}"


def _chat(url: str) -> str:
    args = f"model={MODEL},base_url={url}/chat/completions,num_concurrent=2"
    tasks = _TOOLS / "clients"
    return _run("local-chat-completions", args, "rnn_engine_chat", tasks, "exact_match", "--apply_chat_template")


def _scores(url: str) -> str:
    args = f"model={MODEL},base_url={url}/completions,tokenizer_backend=remote,num_concurrent=2"
    return _run("local-completions", args, TASK, _TOOLS / "lm_eval", "acc")


CHECKS: Checks = {"`local-chat-completions`": _chat, "`local-completions`, remote tokenizer": _scores}
