"""Requests that schemathesis generates from a server's own OpenAPI document. Every answer must match the document.

`python -m tools.fuzz.document` sends many to a server that it starts. Options after `--` go to `rnn-engine serve`.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import from_schema
from schemathesis.engine.events import FatalError, NonFatalError, ScenarioFinished
from schemathesis.engine.recorder import ScenarioRecorder

from tools.fuzz.cases import LEFT_OUT
from tools.fuzz.routes import answer_table
from tools.live_server.process import ServerProcess

_SHOWN = 300  # characters of a body
_OPTIONS = ("--slots", "4", "--state-bytes", "64M", "--max-answer-tokens", "4096", "--max-request-seconds", "20")


@dataclass
class Breaches:
    """The outcome of a run: counts of the answers, and the breaches, which are answers that contradict the document."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)  # by route and class of status
    found: dict[tuple[str, str, str], str] = field(default_factory=dict)  # by route, check and title: the first of each
    errors: list[str] = field(default_factory=list)  # of schemathesis itself

    def add(self, recorder: ScenarioRecorder) -> None:
        """Add the answers and breaches of one schemathesis scenario."""
        for number, interaction in recorder.interactions.items():
            response = interaction.response
            kind = "none" if response is None else f"{response.status_code // 100}xx"
            self.answers[recorder.label, kind] += 1
            for check in recorder.checks.get(number, ()):
                if check.failure_info is not None:
                    failure, case = check.failure_info.failure, recorder.cases[number].value
                    asked = f"{case.method} {case.formatted_path} {case.query} {str(case.body)[:_SHOWN]}"
                    told = "" if response is None else f"{response.status_code} {response.content[:_SHOWN]!r}"
                    lines = (f"{recorder.label}: {failure.title}: {failure.message}", asked, told)
                    self.found.setdefault((recorder.label, check.name, failure.title), "\n    ".join(lines))

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report: a table of answers, then every breach."""
        yield from answer_table(self.answers)
        yield f"\n{self.answers.total()} requests, {len(self.found)} breaches of the document"
        yield from self.found.values()
        yield from self.errors


def try_document(url: str, examples: int, seed: int, *, only: Sequence[str] = (), coverage: bool = False) -> Breaches:
    """Send requests to every route, each under its first path: the document's examples and `examples` random bodies.

    With `coverage` also bodies at and beyond every bound of the schemas, some thousand requests. `only` names paths.
    """
    config = SchemathesisConfig.from_dict(_settings(examples, seed, coverage=coverage))
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=config)

    def is_tried(context: Any) -> bool:  # noqa: ANN401
        path, raw = context.operation.path, context.operation.definition.raw
        return "x-alias-of" not in raw and path not in LEFT_OUT and (not only or path in only)

    breaches = Breaches()
    for event in from_schema(schema.include(func=is_tried)).execute():
        match event:
            case ScenarioFinished():
                breaches.add(event.recorder)
            case FatalError():
                raise RuntimeError("schemathesis failed") from event.exception
            case NonFatalError():
                breaches.errors.append(f"{event.label}: {event.value!r}")
    return breaches


def _settings(examples: int, seed: int, *, coverage: bool) -> dict[str, Any]:
    return {
        "seed": seed,
        "request-timeout": 120,
        "generation": {"max-examples": examples, "mode": "all" if coverage else "positive", "database": "none"},
        "phases": {
            "stateful": {"enabled": False},
            "coverage": {"enabled": coverage},
            "fuzzing": {"generation": {"mode": "positive"}},
        },
        "checks": {
            "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "501", "507"]},
            "allow_header_conformance": {"enabled": False},  # /v1/responses/{id} matches other paths, too
            "positive_data_acceptance": {"enabled": False},  # a name may be taken, two fields may contradict
        },
    }


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--examples", type=click.IntRange(min=1), default=50, show_default=True, help="Random bodies for each route."
)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--path", "only", multiple=True, help="Try only this path, written as in the document. May be given several times."
)
@click.argument("serve_options", nargs=-1, type=click.UNPROCESSED)
def main(examples: int, seed: int, only: tuple[str, ...], serve_options: tuple[str, ...]) -> None:
    """Hold the server to its OpenAPI document."""
    with tempfile.TemporaryDirectory() as folder:
        options = (*_OPTIONS, "--state-folder", f"{folder}/states", *serve_options)
        with ServerProcess(options) as server:
            breaches = try_document(server.url, examples, seed, only=only, coverage=True)
    click.echo("\n".join(breaches.lines()))
    sys.exit(1 if breaches.found or breaches.errors else 0)


if __name__ == "__main__":
    main()
