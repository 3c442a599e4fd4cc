"""The rows of the table in docs/reliability.md, which the tools that attack a server print."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn

import click

from tools.live_server.process import ROOT


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: the outcome of this process's run on `device`."""

    what: str
    often: str
    lost: str
    measured: str
    device: str

    def __str__(self) -> str:
        revision = subprocess.run(
            ("git", "rev-parse", "--short", "HEAD"), cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        where = f"{self.device}, {platform.system()} {platform.machine()}, {revision}, {datetime.now(UTC):%Y-%m-%d}"
        module = sys.modules["__main__"].__spec__
        assert module is not None, "the tools are run with python -m"
        command = " ".join(["python -m", module.name.removesuffix(".__main__"), *sys.argv[1:]])
        cells = (self.what, self.often, self.lost, self.measured, where, f"`{command}`")
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def finish(row: Row, faults: Sequence[str]) -> NoReturn:
    """Print `row` and the faults, and exit, with status 1 if there are any."""
    click.echo(str(row))
    for fault in faults:
        click.echo(f"FAULT: {fault}")
    sys.exit(bool(faults))
