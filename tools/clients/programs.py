"""Checks of programs that people work with in a terminal, most of them coding agents, with their own instructions.

A program runs in an empty folder, with a home of its own. It is asked a question, and is then made to call one of its
tools, so that the call and its result are in the history that it sends with a third question. Each request has to
succeed, and the cache has to have the history. Programs whose instructions can be shortened are then asked to write a
file. No other client may use the server in the meantime.
"""

from __future__ import annotations

import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.clients.checks import FRANCE_QUESTION, Row, read_clients
from tools.clients.recorder import Recorder

_SECOND_QUESTION, _THIRD_QUESTION = "What is 1 + 1?", "What is the capital of Spain?"
_FILE, _CONTENT = "notes.txt", "hello"
_PROMPT, _CACHED = "rnn_engine_prompt_tokens_total", "rnn_engine_cached_prompt_tokens_total"
_RESULTS = ('"type": "function_call_output"', '"type": "tool_result"', '"role": "tool"')


class Program(NamedTuple):
    """How a program is installed and used, as clients.toml says."""

    package: str
    set_up: str
    first: str
    again: str
    tool: str = ""
    write: str = ""
    answers: bool = True
    least_cached: float = 0.9


PROGRAMS = {name: Program(**table) for name, table in read_clients()["programs"].items()}
"""Command -> how it is used."""


def rows(name: str, root: str, path: str) -> Iterator[Row]:
    """Use a program, found on `path`, with the server at `root`, and yield the outcome of each check."""
    program = PROGRAMS[name]
    with Recorder(root) as recorder, tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as folder:

        def ask(what: str, script: str, question: str, part: str = "") -> Row:
            recorder.exchanges.clear()
            environment = {"PATH": path, "HOME": home, "ROOT": recorder.url}
            command = ["sh", "-c", f"{program.set_up}\n{script}", "sh", question]
            done = subprocess.run(
                command, cwd=folder, env=environment, input="", capture_output=True, text=True, timeout=900, check=False
            )
            wrong = [(each.path, each.status) for each in recorder.exchanges if not 200 <= each.status < 300]
            if done.returncode != 0 or wrong or not recorder.exchanges:
                return Row(what, False, f"exit status {done.returncode}, {wrong}: {done.stderr[-400:]}")
            return Row(what, done.stdout.strip() != "" and part in done.stdout, done.stdout[-70:])

        yield ask("an answer", program.first, FRANCE_QUESTION, "Paris" if program.answers else "")
        if program.tool:
            recorder.tool = program.tool
            yield ask(f"a call of `{program.tool}`", program.again, _SECOND_QUESTION)
        before = _tokens(root)
        row = ask("a conversation that goes on", program.again, _THIRD_QUESTION)
        prompt, cached = (now - then for now, then in zip(_tokens(root), before, strict=True))
        history = max((each.history for each in recorder.exchanges), key=len)
        is_whole = FRANCE_QUESTION in history and _THIRD_QUESTION in history
        if program.tool:
            is_whole &= f'"name": "{program.tool}"' in history and any(part in history for part in _RESULTS)
        works = row.works and is_whole and cached >= program.least_cached * prompt > 0
        said = "the history" if is_whole else "no whole history"
        yield Row(row.what, works, f"{said}, {cached} of {prompt} tokens cached: {row.outcome}")
        if program.write:
            row = ask("a file written by its tool", program.write, f"Write {_CONTENT} to {_FILE}")
            file = Path(folder, _FILE)
            written = file.read_text().strip() if file.exists() else None
            yield Row(row.what, row.works and written == _CONTENT, f"the file has {written!r}: {row.outcome}")


def _tokens(root: str) -> tuple[int, int]:
    """Return how many tokens of prompts the server has had, and how many of them came from its cache."""
    with urllib.request.urlopen(f"{root}/metrics") as answer:
        lines = answer.read().decode().splitlines()

    def count(name: str) -> int:
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{")))

    return count(_PROMPT), count(_CACHED)
