"""A pytest plugin that runs llama-server's tests against this server, and records the outcome of each test.

Values that depend on the weights are not compared: texts that must match a pattern, and numbers of tokens.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import ANY

import pytest

from rnn_engine.cli.serve import serve_command
from tools.live_server.process import wait_for_address
from tools.llama_server_tests.options import DOES_NOT_APPLY, LARGE_MODEL, DoesNotApplyError, body_of, options_of

# Names of test parameters. Their values depend on the tokenizer.
_OF_THE_MODEL = ("n_prompt", "n_tokens", "n_token_output", "batch_count")
_FORK = multiprocessing.get_context("fork")


class ForkedServer:
    """`rnn-engine serve` in a fork of this process.

    It starts faster than a new Python, which would import all modules again. It has a free port, and appends all that
    it prints to the file `log`. For a process that has no other threads.
    """

    def __init__(self, log: Path, options: Sequence[str]) -> None:
        """Start the server, and return when it accepts requests. Raises RuntimeError if it ends or takes too long."""
        log.touch()
        begin = log.stat().st_size
        self._process = _FORK.Process(target=_serve, args=(log, options), daemon=True)
        self._process.start()
        try:
            self.url = wait_for_address(log, begin, self._process.is_alive)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill the process, and wait until it has ended."""
        self._process.kill()
        self._process.join()


def _serve(log: Path, options: Sequence[str]) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(output, number)
    sys.stdout = sys.stderr = os.fdopen(output, "w", buffering=1)
    serve_command(["--port", "0", *options], prog_name="rnn-engine serve")


@dataclass
class Plugin:
    """A pytest plugin that runs the tests against this server.

    After the run, `outcomes` maps each test to (outcome, reason).
    """

    tests: Path
    models: Path
    outcomes: dict[str, tuple[str, str]] = field(default_factory=dict)

    def patch(self) -> None:
        """Replace llama-server by this server in the tests' module `utils`. Call it before pytest imports the tests."""
        sys.modules["wget"] = ModuleType("wget")  # tests that would download something do not apply
        sys.path.insert(0, str(self.tests))
        utils: Any = importlib.import_module("utils")
        process, preset = utils.ServerProcess, utils.ServerPreset
        running: dict[int, ForkedServer] = {}

        def start(server: Any, timeout_seconds: int = 0) -> None:  # noqa: ANN401, ARG001
            try:
                options = options_of(server, self.models, self.tests)
            except DoesNotApplyError as error:
                pytest.skip(str(error))
            running[id(server)] = started = ForkedServer(self.models / "server.log", options)
            server.server_port = int(started.url.rpartition(":")[2])
            utils.server_instances.add(server)

        def stop(server: Any) -> None:  # noqa: ANN401
            utils.server_instances.discard(server)
            if (started := running.pop(id(server), None)) is not None:
                started.kill()

        process.start, process.stop = start, stop
        for name in ("make_request", "make_stream_request"):
            setattr(process, name, _with_defaults(getattr(process, name)))
        preset.load_all = staticmethod(lambda: None)
        utils.match_regex = lambda regex, text: isinstance(text, str)  # noqa: ARG005
        utils.download_file = lambda url: url

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            reason = LARGE_MODEL if item.get_closest_marker("slow") else _reason(item.nodeid)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
            call = getattr(item, "callspec", None)
            if call is not None:
                call.params.update({name: ANY for name in _OF_THE_MODEL if name in call.params})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.removeprefix("unit/")
        if report.failed:
            self.outcomes[name] = ("fails", _last_line(report))
        elif report.skipped:
            self.outcomes[name] = ("does not apply", _reason(report.nodeid) or _skip_reason(report))
        elif report.when == "call":
            self.outcomes[name] = ("passes", "")


def _with_defaults(request: Any) -> Any:  # noqa: ANN401
    """Wrap `request`, a method of the tests' client. Bodies then get the defaults that the test set for the process."""

    def with_defaults(server: Any, method: str, path: str, data: Any = None, *rest: Any, **more: Any) -> Any:  # noqa: ANN401
        return request(server, method, path, body_of(server, path, data), *rest, **more)

    return with_defaults


def _reason(test: str) -> str | None:
    """Return why a test does not apply, or None if its name matches no known reason."""
    return next((reason for pattern, reason in DOES_NOT_APPLY.items() if re.search(pattern, test)), None)


def _skip_reason(report: pytest.TestReport) -> str:
    assert isinstance(report.longrepr, tuple)
    return report.longrepr[2].removeprefix("Skipped: ")


def _last_line(report: pytest.TestReport) -> str:
    lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
    return json.dumps(lines[0][1:].strip() if lines else report.longreprtext[-100:])
