"""Checks of coding agents, which run as processes without a terminal, in an empty folder with a home of their own.

An agent is asked a question, and then another one in the same conversation. The prompt of the second one repeats that
of the first one, so that the server need not run it again: its metrics say how much of it came from the cache. No other
client may ask the server in the meantime.

Agents whose instructions can be shortened are then asked to write a file. The model has to call a tool for it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.clients.questions import FRANCE_QUESTION, MODEL, Row

_SECOND_QUESTION = "What is 1 + 1?"
_FILE, _CONTENT = "notes.txt", "hello"
_TASK = f"Write {_CONTENT} to {_FILE}"
_PROMPT, _CACHED = "rnn_engine_prompt_tokens_total", "rnn_engine_cached_prompt_tokens_total"


class Agent(NamedTuple):
    """The options of a command: for a question, another one in the same conversation, and writing a file."""

    first: Sequence[str]
    second: Sequence[str]
    writing: Sequence[str] | None = None  # with the task and short instructions; None if they can't be shortened
    variables: Mapping[str, str] = {}  # of the environment; {root} stands for the URL of the server
    files: Mapping[str, str] = {}  # path from the home -> text; {root} as above
    least_cached: float = 0.9  # share of the prompt of the second question


_CODEX_CONFIG = f"""
model = "{MODEL}"
model_provider = "rnn-engine"
[model_providers.rnn-engine]
name = "rnn-engine"
base_url = "{{root}}/v1"
wire_api = "responses"
"""
_WRITER = "You are an agent."  # the instructions for writing a file
_OPENCODE_PROVIDER = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "{root}/v1"}, "models": {MODEL: {}}}
_OPENCODE_CONFIG = {
    "provider": {"rnn-engine": _OPENCODE_PROVIDER},
    "agent": {"writer": {"mode": "primary", "prompt": _WRITER, "tools": {"*": False, "write": True}}},
}
_CODEX = ["exec", "--skip-git-repo-check"]
_OPENCODE = ["run", "--model", f"rnn-engine/{MODEL}"]
_AIDER = ["--model", f"openai/{MODEL}", "--no-git", "--no-show-model-warnings", "--yes-always"]

AGENTS: Mapping[str, Agent] = {
    "claude": Agent(
        ["-p"],
        ["-p", "--continue"],
        ["-p", "--system-prompt", _WRITER, "--tools", "Write", "--permission-mode", "acceptEdits", _TASK],
        {"ANTHROPIC_BASE_URL": "{root}", "ANTHROPIC_AUTH_TOKEN": "-"},
    ),
    "codex": Agent(_CODEX, [*_CODEX, "resume", "--last"], files={".codex/config.toml": _CODEX_CONFIG}),
    "opencode": Agent(
        _OPENCODE,
        [*_OPENCODE, "--continue"],
        [*_OPENCODE, "--agent", "writer", *_TASK.split()],  # it puts an argument with spaces into quotation marks
        files={".config/opencode/opencode.json": json.dumps(_OPENCODE_CONFIG)},
    ),
    "aider": Agent(
        [*_AIDER, "--message"],
        [*_AIDER, "--restore-chat-history", "--message"],
        variables={"OPENAI_API_BASE": "{root}/v1", "OPENAI_API_KEY": "-"},
        least_cached=0.5,  # its instructions are repeated after the conversation
    ),
}
"""Command -> how it is used."""


def version(name: str) -> str | None:
    """Return the version of an agent's command, or None if it is not installed."""
    if shutil.which(name) is None:
        return None
    found = subprocess.run([name, "--version"], check=True, capture_output=True, text=True).stdout
    return next(word for word in found.split() if word[0].isdigit())


def rows(name: str, url: str) -> Iterator[Row]:
    """Ask an agent both questions over the API at `url`, have it write a file, and yield the outcome of each."""
    agent, root = AGENTS[name], url.removesuffix("/v1")
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as folder:
        for path, text in agent.files.items():
            file = Path(home, path)
            file.parent.mkdir(parents=True)
            file.write_text(text.replace("{root}", root))
        variables = {key: value.replace("{root}", root) for key, value in agent.variables.items()}
        environment = {"PATH": os.environ["PATH"], "HOME": home, **variables}
        yield _ask("an answer", [name, *agent.first, FRANCE_QUESTION], folder, environment)
        prompt, cached = _tokens(root, _PROMPT), _tokens(root, _CACHED)
        row = _ask("a second turn", [name, *agent.second, _SECOND_QUESTION], folder, environment)
        prompt, cached = _tokens(root, _PROMPT) - prompt, _tokens(root, _CACHED) - cached
        outcome = f"{cached} of {prompt} tokens cached: {row.outcome}"
        yield Row(row.what, row.works and cached >= agent.least_cached * prompt > 0, outcome)
        if agent.writing is not None:
            row = _ask("a file written by its tool", [name, *agent.writing], folder, environment)
            file = Path(folder, _FILE)
            written = file.read_text().strip() if file.exists() else None
            yield Row(row.what, row.works and written == _CONTENT, f"the file has {written!r}: {row.outcome}")


def _ask(what: str, command: Sequence[str], folder: str, environment: Mapping[str, str]) -> Row:
    done = subprocess.run(
        command, cwd=folder, env=environment, input="", capture_output=True, text=True, timeout=900, check=False
    )
    works = done.returncode == 0 and done.stdout.strip() != ""
    return Row(what, works, done.stdout[-70:] if works else f"exit status {done.returncode}: {done.stderr[-400:]}")


def _tokens(root: str, metric: str) -> int:
    """Return a counter of the server's metrics, summed over its models."""
    with urllib.request.urlopen(f"{root}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith(f"{metric}{{")))
