"""The verdict of a soak test: a report for people, and a list of faults."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tools.reliability.table import Row
from tools.soak.driver import Record, Timing
from tools.soak.samples import Sample

MOST_GROWTH = 0.02
"""How much more memory the end may take than the time after the warm-up, as a part of that."""

_WINDOW = 5  # samples whose median is the memory at a time
_MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of memory: bytes after the warm-up, bytes at the end, and the slope between them in bytes per hour."""

    first: float
    last: float
    slope: float

    @property
    def part(self) -> float:
        return self.last / self.first - 1

    @property
    def flat(self) -> bool:
        return self.part <= MOST_GROWTH


def growth(samples: Sequence[Sample], warm_up: float) -> Growth | None:
    """Return how memory grew after `warm_up` seconds. None if fewer than two samples after it have a memory figure."""
    points = [(at.seconds, at.memory) for at in samples if at.seconds >= warm_up and at.memory is not None]
    if len(points) < 2:
        return None
    times, memory = zip(*points, strict=True)
    window = min(_WINDOW, len(points) // 2)
    slope = statistics.linear_regression(times, memory).slope
    return Growth(statistics.median(memory[:window]), statistics.median(memory[-window:]), 3600 * slope)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The data of a finished soak test, with the faults, the table row and the report that follow from them."""

    samples: Sequence[Sample]
    record: Record
    left: Sample  # after the last operation has ended
    growth: Growth | None
    exit_status: int | None  # of the server; None where it is not ours

    def faults(self) -> Iterator[str]:
        """Yield a description of each fault that the soak test found."""
        if self.record.num_surprises:
            yield f"{self.record.num_surprises} errors that were not provoked"
        if self.growth is not None and not self.growth.flat:
            yield f"memory grew by {self.growth.part:.1%}, expected at most {MOST_GROWTH:.0%}"
        if self.left.requests or self.left.active or self.left.queued:
            yield f"requests are left: {self.left.requests}, active {self.left.active}, queued {self.left.queued}"
        if self.exit_status:
            yield f"the server ended with status {self.exit_status} after SIGTERM"

    def row(self, minutes: float, where: str, command: str) -> Row:
        """Return the test's row for the table in docs/reliability.md."""
        memory = "" if self.growth is None else f"memory {self.growth.part:+.2%} after the warm-up"
        return Row(
            "mixed traffic of two API keys",
            f"{minutes:g} minutes, {self.record.done.total():,} operations",
            f"{self.record.num_surprises} errors that were not provoked",
            memory,
            where,
            command,
        )

    def lines(self) -> Iterator[str]:
        """Yield the lines of the whole report, as Markdown."""
        yield f"{self.record.done.total()} operations, {self.record.num_surprises} errors that were not provoked"
        yield from (f"  {count} x {what}" for what, count in self.record.surprises.most_common())
        yield from self._process_lines()
        yield from latency_table(self.record.timings)

    def _process_lines(self) -> Iterator[str]:
        if self.growth is not None:
            yield (
                f"memory: {self.growth.first / _MEGABYTE:.1f} MB after the warm-up, {self.growth.last / _MEGABYTE:.1f} "
                f"MB at the end ({self.growth.part:+.2%}; {self.growth.slope / _MEGABYTE:+.2f} MB an hour)"
            )
        first, last = self.samples[0], self.left
        for name in ("descriptors", "threads", "cache_used", "cache_index", "states"):
            yield f"{name}: {getattr(first, name)} in the first sample, {getattr(last, name)} when all had ended"


def latency_table(timings: Sequence[Timing]) -> Iterator[str]:
    """Yield the lines of a table: each operation's latency in the first tenth and in the last tenth of the test."""
    yield ""
    yield "| operation | times | median ms, first tenth | last tenth | 95 % ms, first tenth | last tenth |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    whole = max((timing.begun for timing in timings), default=0.0)
    for name in sorted({timing.name for timing in timings}):
        of_name = [timing for timing in timings if timing.name == name]
        first = [timing.seconds for timing in of_name if timing.begun <= 0.1 * whole]
        last = [timing.seconds for timing in of_name if timing.begun >= 0.9 * whole]
        figures = [_milliseconds(seconds, part) for part in (0.5, 0.95) for seconds in (first, last)]
        yield f"| {name} | {len(of_name)} | {' | '.join(figures)} |"
    yield ""


def _milliseconds(seconds: Sequence[float], part: float) -> str:
    return f"{1e3 * sorted(seconds)[int(part * (len(seconds) - 1))]:.0f}" if seconds else "-"
