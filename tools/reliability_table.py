"""The rows of the table in docs/reliability.md, which the tools that attack a server print."""

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


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: the outcome of one run."""

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
    """Return a cell of the table: the command line of this process."""
    return f"`{' '.join(['python -m', module, *sys.argv[1:]])}`"


def finish(row: Row, faults: Sequence[str]) -> NoReturn:
    """Print `row` and the faults, and exit, with status 1 if there are any."""
    click.echo(str(row))
    for fault in faults:
        click.echo(f"FAULT: {fault}")
    sys.exit(bool(faults))
