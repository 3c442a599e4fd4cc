"""lm-eval: `local-chat-completions` generates. That `local-completions` scores as /v1/choices shows `tools.lm_eval`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.clients.questions import MODEL, Checks

_TASK = "rnn_engine_chat"
_ITEMS = 8


def _chat(url: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *(sys.executable, "-m", "lm_eval", "run", "--model", "local-chat-completions", "--apply_chat_template"),
                *("--model_args", f"model={MODEL},base_url={url}/chat/completions,num_concurrent=2"),
                *("--tasks", _TASK, "--include_path", str(Path(__file__).parent), "--limit", str(_ITEMS)),
                *("--output_path", folder),
            ],
            check=True,
            capture_output=True,
        )
        [results] = Path(folder).rglob("results_*.json")
        found = json.loads(results.read_text())["results"][_TASK]
    return f"{found['sample_len']} items, exact_match {found['exact_match,none']}"


CHECKS: Checks = {"`local-chat-completions`": _chat}
