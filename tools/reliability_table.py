"""The table of results in docs/reliability.md. With `--record`, a test tool writes its row into the table."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import NoReturn

import click

from tools.live_server.process import ROOT

DOCUMENT = ROOT / "docs" / "reliability.md"
HEAD = "| what was tried | how often | lost or wrong | measured | where and when | command |"
_RULE = "| --- | --- | --- | --- | --- | --- |"

record_option = click.option(
    "--record", "save", is_flag=True, help="Write the result into the table of docs/reliability.md."
)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: the outcome of one run. It replaces an earlier row with the same `what`."""

    what: str
    often: str
    lost: str
    measured: str
    where: str
    command: str

    def __str__(self) -> str:
        return f"| {' | '.join(cell.replace('|', '/') for cell in astuple(self))} |"


def where(device: str) -> str:
    """Return a cell of the table: the device, the system, the revision and today's date."""
    command = ("git", "rev-parse", "--short", "HEAD")
    revision = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return f"{device}, {platform.system()} {platform.machine()}, {revision}, {datetime.now(UTC):%Y-%m-%d}"


def command_line(module: str) -> str:
    """Return a cell of the table: the command line of this process, without --record."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--record"]
    return f"`{' '.join(['python -m', module, *arguments])}`"


def finish(row: Row, faults: Sequence[str], *, save: bool) -> NoReturn:
    """Print `row` and the faults, write the row into the document if `save`, and exit, with status 1 for faults."""
    click.echo(str(row))
    for fault in faults:
        click.echo(f"FAULT: {fault}")
    if save:
        DOCUMENT.write_text(with_row(DOCUMENT.read_text("utf-8"), row), "utf-8")
    sys.exit(bool(faults))


def with_row(text: str, row: Row) -> str:
    """Return the document `text` with `row` added or replaced. Raises ValueError if it has no table."""
    before, head, rest = text.partition(f"{HEAD}\n{_RULE}\n")
    if not head:
        raise ValueError("docs/reliability.md has no table of results")
    lines = rest.split("\n")
    count = next(number for number, line in enumerate(lines) if not line.startswith("|"))
    rows = lines[:count]
    place = next((number for number, line in enumerate(rows) if line.startswith(f"| {row.what} |")), count)
    rows[place : place + 1] = [str(row)]
    return before + head + "\n".join([*rows, *lines[count:]])
