"""`python -m tools.fuzz.files`: damaged files of every kind, each given to its reader.

A reader must accept a file or raise one of the project's own errors, in little memory and time. It must never return
another state than the one that was written.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

import click

from rnn_engine.errors import RnnEngineError
from tools.fuzz.file_kinds import KINDS, Kind
from tools.fuzz.structures import mutate_file
from tools.reliability.table import Row, command_line, record, record_option, where

MOST_MEMORY = 32 << 20  # bytes; the largest of the files has some 0.1 MB
_MOST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of reading one damaged file."""

    ending: str  # read, refused, or fault
    fault: str = ""


def try_case(kind: Kind, sound: bytes, path: Path, seed: str) -> Outcome:
    """Damage a sound file, read it at `path`, and return the outcome."""
    path.write_bytes(mutate_file(sound, Random(seed)))
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    begun = time.monotonic()
    try:
        kind.read(path)
        ending = "read"
    except RnnEngineError:
        ending = "refused"
    except BaseException as error:  # also panics of libraries, which are not derived from Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return Outcome("fault", f"{kind.name}, case {seed}: {type(error).__name__}: {str(error)[:300]}")
    memory = tracemalloc.get_traced_memory()[1] - before
    if memory > MOST_MEMORY:
        return Outcome("fault", f"{kind.name}, case {seed}: {memory / 1e6:.0f} MB of memory")
    if time.monotonic() - begun > _MOST_SECONDS:
        return Outcome("fault", f"{kind.name}, case {seed}: {time.monotonic() - begun:.0f} s")
    return Outcome(ending)


@click.command()
@click.option(
    "--cases", type=click.IntRange(min=1), default=2000, show_default=True, help="Cases of each kind of file."
)
@click.option("--seed", default=0, show_default=True)
@record_option
def main(cases: int, seed: int, save: bool) -> None:
    """Give damaged files of every kind to their readers."""
    logging.disable()  # readers log each file that they skip
    warnings.simplefilter("error")
    tracemalloc.start()
    faults: list[str] = []
    click.echo("| file | read | refused | faults |\n| --- | ---: | ---: | ---: |")
    for kind in KINDS:
        counts: Counter[str] = Counter()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            kind.write(path)
            sound = path.read_bytes()
            for number in range(cases):
                outcome = try_case(kind, sound, path, f"{seed} {number}")
                counts[outcome.ending] += 1
                faults += [outcome.fault] if outcome.fault else []
        click.echo(f"| {kind.name} | {counts['read']} | {counts['refused']} | {counts['fault']} |")
    for fault in faults:
        click.echo(f"FAULT: {fault}")
    if save:
        record(
            Row(
                "damaged files",
                f"{cases * len(KINDS):,} of {len(KINDS)} kinds",
                f"{len(faults)} crashes, wrong states, or more than {MOST_MEMORY >> 20} MiB",
                "",
                where("no device"),
                command_line("tools.fuzz.files"),
            )
        )
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
