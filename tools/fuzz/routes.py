"""`python -m tools.fuzz.routes`: requests to every route of a server, made from its OpenAPI document, and damaged ones.

schemathesis sends the examples of the document, random bodies, and bodies at and beyond every bound of the schemas.
Every answer must match the document. Then copies of these requests are sent with damaged bytes. The server may refuse
them or close the connection. Options after `--` go to `rnn-engine serve`: python -m tools.fuzz.routes -- --device cpu
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import click
import psutil
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import from_schema
from schemathesis.engine.events import FatalError, NonFatalError, ScenarioFinished
from schemathesis.engine.recorder import Request, ScenarioRecorder

from tools.fuzz.mutations import mutate_bytes
from tools.live_server.asking import connection, device_of, encode_request
from tools.live_server.process import ServerProcess
from tools.markdown import table
from tools.reliability_table import Row, finish

LEFT_OUT = frozenset(
    {"/admin/models/load", "/admin/models/unload", "/api/models/state", "/switch-model", "/v1/engine/events"}
)
"""Paths that unload the model, or whose answer does not end."""

_OPTIONS = ("--slots", "4", "--state-bytes", "64M", "--max-answer-tokens", "4096", "--max-request-seconds", "20")
_EXPECTED = ("501", "507")  # of a route that says why there is no such thing here, and of a full disk
_STATUS = re.compile(rb"(?:HTTP/1\.1 100 [^\r]*\r\n\r\n)?HTTP/1\.[01] ([0-9]{3})")
_AT_ONCE = 4  # damaged requests
_SILENCE = 0.5  # seconds to wait for the answer to a request that may be incomplete
_HANGING = 300.0  # seconds after which a server counts as hanging
_MOST_MEMORY = 2**30  # bytes that the process may take more than at the start
_SHOWN = 300  # characters of a body


@dataclass
class Breaches:
    """The outcome of a run: what was sent, counts of the answers, and those that contradict the document."""

    requests: list[Request] = field(default_factory=list)
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)  # by route and class of status
    found: dict[tuple[str, str, str], str] = field(default_factory=dict)  # by route, check and title: the first of each
    errors: list[str] = field(default_factory=list)  # of schemathesis itself

    def add(self, recorder: ScenarioRecorder) -> None:
        """Add the answers and breaches of one schemathesis scenario."""
        for number, interaction in recorder.interactions.items():
            response = interaction.response
            self.requests.append(interaction.request)
            self.answers[recorder.label, "none" if response is None else f"{response.status_code // 100}xx"] += 1
            for check in recorder.checks.get(number, ()):
                if check.failure_info is not None:
                    failure, case = check.failure_info.failure, recorder.cases[number].value
                    asked = f"{case.method} {case.formatted_path} {case.query} {str(case.body)[:_SHOWN]}"
                    told = "" if response is None else f"{response.status_code} {response.content[:_SHOWN]!r}"
                    lines = (f"{recorder.label}: {failure.title}: {failure.message}", asked, told)
                    self.found.setdefault((recorder.label, check.name, failure.title), "\n    ".join(lines))

    def table(self) -> str:
        """Return a table: how often each route answered with each class of status, such as 4xx."""
        labels, classes = (sorted(set(part)) for part in zip(*self.answers, strict=True))
        rows = ((label, *(str(self.answers[label, status]) for status in classes)) for label in labels)
        return table(("request", *classes), rows)


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
        "generation": {"max-examples": examples, "mode": "all", "database": "none"},
        "phases": {"stateful": {"enabled": False}, "coverage": {"enabled": coverage}},
        "checks": {
            "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", *_EXPECTED]},
            "allow_header_conformance": {"enabled": False},  # /v1/responses/{id} matches other paths, too
            "positive_data_acceptance": {"enabled": False},  # a name may be taken, two fields may contradict
        },
    }


async def try_damaged(url: str, requests: Sequence[Request], count: int, seed: int) -> list[str]:
    """Send `count` damaged copies of some of `requests`, and return a description of each fault of the server."""
    found: list[str] = []
    numbers = iter(range(count))

    async def send_next() -> None:
        for number in numbers:
            random = Random(f"{seed} {number}")
            data = _damage(url, random.choice(requests), random)
            if fault := fault_of(await _send(url, data)):
                found.append(f"damaged request {number}: {fault}: {data[:_SHOWN]!r}")

    await asyncio.gather(*(send_next() for _ in range(_AT_ONCE)))
    return found


def _damage(url: str, request: Request, random: Random) -> bytes:
    """Return the bytes of `request`, of which the body or any part is damaged."""
    headers = {name: values[0] for name, values in request.headers.items() if name != "Content-Length"}
    body, is_whole = request.body or b"", random.random() < 0.5
    if not is_whole:
        body = mutate_bytes(body, random)
    path = request.uri.removeprefix(url)
    data = encode_request(request.method, path, body, {**headers, "Connection": "close"})
    return mutate_bytes(data, random) if is_whole else data


async def _send(url: str, data: bytes) -> bytes | None:
    """Send a request to the server, and return what it answers. None: it neither answers nor closes the connection.

    If there is no answer soon, the request may be incomplete, and its end is sent.
    """
    received = bytearray()
    with suppress(ConnectionError):
        async with connection(url) as (reader, writer):
            writer.write(data)
            is_closed = await _read(reader, received, _SILENCE)
            if not received and not is_closed:
                writer.write_eof()
                is_closed = await _read(reader, received, _HANGING)
            return bytes(received) if received or is_closed else None
    return bytes(received)


async def _read(reader: asyncio.StreamReader, received: bytearray, seconds: float) -> bool:
    """Append to `received` the bytes that arrive. Return True if the server closed the connection within `seconds`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while piece := await reader.read(2**16):
                received += piece
            return True
    return False


def fault_of(answer: bytes | None) -> str | None:
    """Return what is wrong with the answer to a damaged request, or None if nothing is."""
    if answer is None:
        return f"no answer within {_HANGING:g} s"
    found = _STATUS.match(answer)
    if found is None or found[1] < b"500" or found[1].decode() in _EXPECTED:
        return None
    return repr(answer[found.start(1) :][:_SHOWN])


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--examples", type=click.IntRange(min=1), default=50, show_default=True, help="Random bodies for each route."
)
@click.option("--damaged", default=5000, show_default=True, help="Damaged requests.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--path", "only", multiple=True, help="Try only this path, written as in the document. May be given several times."
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(examples: int, damaged: int, seed: int, only: tuple[str, ...], options: tuple[str, ...]) -> None:
    """Hold a server to its OpenAPI document, and send it damaged requests."""
    with (
        tempfile.TemporaryDirectory() as states,
        ServerProcess((*_OPTIONS, "--state-folder", states, *options)) as server,
    ):
        process = psutil.Process(server.pid)
        before = process.memory_info().rss
        breaches = try_document(server.url, examples, seed, only=only, coverage=True)
        faults = [*breaches.found.values(), *breaches.errors]
        faults += asyncio.run(try_damaged(server.url, breaches.requests, damaged, seed))
        device, grown = asyncio.run(device_of(server.url)), process.memory_info().rss - before
        if grown > _MOST_MEMORY:
            faults.append(f"memory grew by {grown / 1e6:.0f} MB")
        if server.stop() != 0:
            faults.append("the server did not exit with status 0 after SIGTERM")
    click.echo(breaches.table())
    often = f"{breaches.answers.total():,}, and {damaged:,} with damaged bytes"
    lost = f"{len(faults)} answers that contradict the document or are the server's fault"
    finish(Row("requests to every route", often, lost, f"memory +{grown / 1e6:.0f} MB", device), faults)


if __name__ == "__main__":
    main()
