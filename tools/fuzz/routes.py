"""`python -m tools.fuzz.routes`: damaged requests to every route of a running server.

No answer may be a server's fault, or lack the documented form. The server must go on, answer its health at all times,
and log no traceback. Options after `--` go to `rnn-engine serve`: python -m tools.fuzz.routes -- --device cpu
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import psutil
from aiohttp import ClientError, ClientSession, ClientTimeout

from tools.fuzz.cases import TRIED_ROUTES, Case, CaseMaker, KnownIds
from tools.live_server.asking import connection, device_of
from tools.live_server.process import ServerProcess
from tools.reliability_table import Row, command_line, finish, where

_SILENCE = 2.0  # seconds to wait for the answer to an incomplete request
_HANGING = 300.0  # seconds after which a server counts as hanging
NOT_IMPLEMENTED = 501
"""The status of routes that exist to say why there is no such thing here."""

_TEXT_ERRORS = ({"error", "error_type"}, {"error"})  # of text-generation-inference and of Ollama
_STATUS = re.compile(rb"(?:HTTP/1\.1 100 [^\r]*\r\n\r\n)?HTTP/1\.[01] ([0-9]{3})")
_AT_ONCE = 4
_SLOWEST_HEALTH = 5.0  # seconds
_MOST_MEMORY = 2**30  # bytes that the process may take more than at the start
_SHOWN = 300  # bytes of a request
_OPTIONS = ("--slots", "4", "--cache-device-bytes", "1M", "--cache-host-bytes", "8M", "--state-bytes", "64M")


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's answer to a damaged request. `status` is None if no HTTP response came."""

    status: int | None
    body: bytes
    hung: bool = False


async def send(url: str, case: Case) -> Answer:
    """Send the request to the server, and return what comes until the server closes the connection.

    After a request that is not whole, stop when the server has sent nothing more for `_SILENCE` seconds.
    """
    received = bytearray()
    try:
        async with connection(url) as (reader, writer):
            writer.write(case.data)
            if await _read(reader, received, _HANGING if case.whole else _SILENCE):
                return _parse(received)
            if not received and not case.whole:
                writer.write_eof()
                if await _read(reader, received, _HANGING):
                    return _parse(received)
            return Answer(None, b"", hung=True) if case.whole or not received else _parse(received)
    except ConnectionError:
        return _parse(received)


async def _read(reader: asyncio.StreamReader, received: bytearray, seconds: float) -> bool:
    """Append to `received` the bytes that arrive. Return True if the server closed the connection within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            while piece := await reader.read(2**16):
                received += piece
    except TimeoutError:
        return False
    return True


def _parse(received: bytearray) -> Answer:
    found = _STATUS.match(received)
    if found is None:
        return Answer(None, b"")
    return Answer(int(found[1]), bytes(received[found.end() :]).partition(b"\r\n\r\n")[2])


def faults(case: Case, answer: Answer) -> Iterator[str]:
    """Yield a description of each way in which the server's answer to `case` is wrong."""
    if answer.hung:
        yield f"no answer within {_HANGING:g} s"
    elif answer.status is None and case.whole:
        yield "the connection was closed without an answer"
    elif answer.status is not None and answer.status >= 500 and answer.status != NOT_IMPLEMENTED:
        yield f"status {answer.status}: {answer.body[:300]!r}"
    elif answer.status is not None and answer.status >= 400 and not _is_error_body(answer.body):
        yield f"status {answer.status} with another body than an error's: {answer.body[:100]!r}"


def _is_error_body(body: bytes) -> bool:
    """Return True if an error's body has the documented form. An empty body is right too, as after HEAD."""
    try:
        if not body:
            return True
        told = json.loads(body)
        if set(told) == {"detail"}:  # of KoboldCpp and of RWKV-Runner
            detail = told["detail"]
            return isinstance(detail["msg"] if isinstance(detail, dict) else detail, str)
        if isinstance(told["error"], str):
            return set(told) in _TEXT_ERRORS
        names = set(told["error"]) - {"line", "column"}  # of a grammar's fault
        return names == ({"message", "type"} if "type" in told else {"message", "type", "param", "code"})
    except (ValueError, KeyError, TypeError):
        return False


def answer_table(answers: Counter[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines of a table: how often each route answered with each class of status, such as 4xx."""
    classes = sorted({status for _, status in answers})
    yield f"| request | {' | '.join(classes)} |"
    yield f"| --- |{' ---: |' * len(classes)}"
    for title in sorted({title for title, _ in answers}):
        yield f"| {title} | {' | '.join(str(answers[title, status]) for status in classes)} |"


@dataclass
class Findings:
    """The outcome of a run: counts of the answers, the faults, and the server's health and memory."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)  # by route and class of status
    faults: list[str] = field(default_factory=list)
    slowest_health: float = 0.0
    most_memory: int = 0
    health_checks: int = 0
    device: str = ""

    def row(self) -> Row:
        """Return the run's row for the table of docs/reliability.md."""
        return Row(
            "damaged requests to every route",
            f"{self.answers.total():,}",
            f"{len(self.faults)} answers that are the server's fault",
            f"slowest of {self.health_checks:,} health checks {1e3 * self.slowest_health:.0f} ms, memory "
            f"+{self.most_memory / 1e6:.0f} MB",
            where(self.device),
            command_line("tools.fuzz.routes"),
        )


@dataclass
class Fuzzer:
    """A client that sends cases to one server, a few in parallel, and meanwhile checks the server's /health."""

    url: str
    pid: int
    ids: KnownIds  # learns from the answers
    findings: Findings = field(default_factory=Findings)

    async def run(self, cases: Iterator[Case]) -> None:
        """Send all cases. Raises RuntimeError if the server's /health stops answering."""
        async with self._watching(), asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(self._send_all(cases))

    async def _send_all(self, cases: Iterator[Case]) -> None:
        for case in cases:
            answer = await send(self.url, case)
            status = "none" if answer.status is None else f"{answer.status // 100}xx"
            self.findings.answers[case.route, status] += 1
            self.ids.learn(case.route, answer.status, answer.body)
            for fault in faults(case, answer):
                self.findings.faults.append(
                    f"case {case.number}: {case.route}, damaged {case.kind}: {fault}\n  {case.data[:_SHOWN]!r}"
                )

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        async with ClientSession(timeout=ClientTimeout(total=60)) as session:
            self.findings.device = await device_of(session, self.url)
            at_start = psutil.Process(self.pid).memory_info().rss
            watch = asyncio.create_task(self._watch(session, at_start))
            yield
            watch.cancel()

    async def _watch(self, session: ClientSession, at_start: int) -> None:
        while True:
            begun = time.monotonic()
            try:
                async with session.get(f"{self.url}/health") as response:
                    if response.status != 200:
                        self.findings.faults.append(f"/health answers {response.status}: {await response.text()}")
            except (ClientError, TimeoutError, ConnectionError) as error:
                raise RuntimeError(f"/health does not answer: {error!r}") from error
            findings, took = self.findings, time.monotonic() - begun
            if took > _SLOWEST_HEALTH:
                findings.faults.append(f"/health took {took:.1f} s")
            grown = psutil.Process(self.pid).memory_info().rss - at_start
            if grown > _MOST_MEMORY >= findings.most_memory:
                findings.faults.append(f"memory grew by {grown / 1e6:.0f} MB")
            findings.health_checks += 1
            findings.slowest_health = max(findings.slowest_health, took)
            findings.most_memory = max(findings.most_memory, grown)
            await asyncio.sleep(0.05)


async def exported_states(url: str) -> dict[str, bytes]:
    """Create a state on the server, and return its exported file in each form, by the form's name."""
    async with ClientSession(url) as session:
        async with session.post("/v1/states", json={"name": "fuzz seed", "prompt": "Hello"}) as response:
            response.raise_for_status()
        files = {}
        for form in ("full", "tuned", "prefab"):
            async with session.get(f"/v1/states/fuzz%20seed/export?form={form}") as response:
                response.raise_for_status()
                files[form] = await response.read()
        return files


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--cases", type=click.IntRange(min=1), default=10_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--case", "only", type=int, help="Send only the case of this number, and print the request and the answer."
)
@click.option("--under", multiple=True, help="Try only the routes under this path. May be given several times.")
@click.argument("serve_options", nargs=-1, type=click.UNPROCESSED)
def main(cases: int, seed: int, only: int | None, under: tuple[str, ...], serve_options: tuple[str, ...]) -> None:
    """Start a server, and send damaged requests to each of its routes."""
    routes = [route for route in TRIED_ROUTES if route.path.startswith(under or "")]
    if not routes:
        raise click.BadParameter(f"there is no route under {' or '.join(under)}", param_hint="--under")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with ServerProcess((*_OPTIONS, "--state-folder", f"{folder}/states", *serve_options), log=log) as server:
            maker = CaseMaker(routes, asyncio.run(exported_states(server.url)), seed)
            fuzzer = Fuzzer(server.url, server.pid, maker.ids)
            if only is not None:
                case = maker.make(only)
                click.echo(f"{case.route}, damaged {case.kind}\n{case.data!r}\n{asyncio.run(send(server.url, case))}")
                return
            asyncio.run(fuzzer.run(map(maker.make, range(cases))))
            if server.stop() != 0:
                fuzzer.findings.faults.append("the server did not exit with status 0 after SIGTERM")
        printed = log.read_text(errors="replace")
    if "Traceback" in printed:
        place = printed.index("Traceback")
        fuzzer.findings.faults.append(
            f"{printed.count('Traceback')} tracebacks in the log: {printed[place - 200 : place + 2000]}"
        )
    click.echo("\n".join(answer_table(fuzzer.findings.answers)))
    finish(fuzzer.findings.row(), fuzzer.findings.faults)


if __name__ == "__main__":
    main()
