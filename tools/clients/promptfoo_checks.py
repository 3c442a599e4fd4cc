"""Checks of promptfoo, which asks a question through each of its providers."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.clients.questions import Row, read_clients, root_of


def rows(url: str, command: str) -> Iterator[Row]:
    """Run the evaluation of each provider by `command` against the API at `url`, and yield the outcome of each."""
    for check in read_clients(URL=url, ROOT=root_of(url))["promptfoo"]:
        yield _evaluate(url, command, **check)


def _evaluate(
    url: str, command: str, provider: str, config: Mapping[str, Any], question: str, expected: Mapping[str, Any]
) -> Row:
    """Ask one question through promptfoo, and return the outcome: whether the answer is the expected one."""
    evaluation = {
        "prompts": ["{{question}}"],
        "providers": [{"id": provider, "config": config}],
        "tests": [{"vars": {"question": question}, "assert": [expected]}],
    }
    what = f"`{provider}`, {expected['type']}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "promptfooconfig.yaml")
        path.write_text(json.dumps(evaluation))  # JSON is YAML
        done = subprocess.run(
            [command, "eval", "--no-cache", "--no-write", "--config", path, "--output", f"{folder}/found.json"],
            env={
                **os.environ,
                "OLLAMA_BASE_URL": root_of(url),
                "PROMPTFOO_CONFIG_DIR": folder,
                "PROMPTFOO_DISABLE_TELEMETRY": "1",
                "PROMPTFOO_DISABLE_UPDATE": "1",
            },
            capture_output=True,
            text=True,
            check=False,  # it fails if the answer is not the expected one
        )
        if not Path(folder, "found.json").exists():
            return Row(what, False, done.stderr)
        [found] = json.loads(Path(folder, "found.json").read_text())["results"]["results"]
    outcome = json.dumps(found.get("response", {}).get("output")) if found["success"] else found["error"]
    return Row(what, found["success"], outcome)
