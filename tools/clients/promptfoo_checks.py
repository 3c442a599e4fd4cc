"""Checks of promptfoo, which asks a question through each of its providers."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tools.clients.questions import FRANCE_QUESTION, MODEL, WEATHER_QUESTION, WEATHER_TOOL, Row

_PARIS = {"type": "contains", "value": "Paris"}
_ANY_TEXT = {"type": "javascript", "value": "output != ''"}
_CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
_SIMILAR = {"type": "similar", "value": "The capital of France is Paris.", "threshold": 0.9}


def rows(url: str, command: str) -> Iterator[Row]:
    """Run the evaluation of each provider by `command` against the API at `url`, and yield the outcome of each."""
    ask = partial(_evaluate, url, command)
    openai = {"apiBaseUrl": url, "apiKey": "-", "temperature": 0}
    anthropic = {"apiBaseUrl": url.removesuffix("/v1"), "apiKey": "-", "temperature": 0, "max_tokens": 40}
    schema = {**openai, "response_format": {"type": "json_schema", "json_schema": {"name": "City", "schema": _CITY}}}
    yield ask(f"openai:chat:{MODEL}", openai, FRANCE_QUESTION, _PARIS)
    yield ask(f"openai:chat:{MODEL}", schema, FRANCE_QUESTION, {"type": "is-json", "value": _CITY})
    tools = {**openai, "tools": [WEATHER_TOOL]}
    yield ask(f"openai:chat:{MODEL}", tools, WEATHER_QUESTION, {"type": "is-valid-openai-tools-call"})
    yield ask(f"openai:responses:{MODEL}", openai, FRANCE_QUESTION, _PARIS)
    yield ask(f"openai:completion:{MODEL}", openai, FRANCE_QUESTION, _ANY_TEXT)
    yield ask(f"openai:chat:{MODEL}", openai, FRANCE_QUESTION, {**_SIMILAR, "provider": _embedding(openai)})
    yield ask(f"anthropic:messages:{MODEL}", anthropic, FRANCE_QUESTION, _PARIS)
    yield ask(f"ollama:chat:{MODEL}", {"temperature": 0}, FRANCE_QUESTION, _PARIS)


def _embedding(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"id": f"openai:embedding:{MODEL}", "config": config}


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
                "OLLAMA_BASE_URL": url.removesuffix("/v1"),
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
