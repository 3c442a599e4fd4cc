"""Progress bars on the terminal's error output, or in a notebook that has ipywidgets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

_LOG_SECONDS = 3.0  # between two lines of the log
_log = logging.getLogger(__name__)

Report: TypeAlias = Callable[[str, int, int], None]
"""Takes the current task, the number of parts that are done, and that of all parts. May be called on any thread."""


def ignore(*_: object) -> None:
    """Default of callbacks; ignores its arguments."""


@contextmanager
def progress_bar(title: str, *, with_time_left: bool = False) -> Iterator[Report]:
    """Return a context manager that shows a progress bar while its block runs, and yields a function to update it.

    Without a terminal, progress is written to the log: at first, and then every few seconds.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    times = (TimeElapsedColumn(), TimeRemainingColumn()) if with_time_left else (TimeElapsedColumn(),)
    with _bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times) as bar:
        task = bar.add_task(title, total=None)
        if not bar.disable:
            yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
            return
        with _logged_progress(title) as report:
            yield report


@contextmanager
def _logged_progress(title: str) -> Iterator[Report]:
    """Return a context manager that writes `title` to the log, and from time to time what was reported last."""
    _log.info("%s", title)
    reports: list[tuple[str, int, int]] = []  # the last one
    is_over = threading.Event()

    def write() -> None:
        while not is_over.wait(_LOG_SECONDS):
            for what, done, total in reports:
                _log.info("%s: %s, %d of %d", title, what, done, total)

    thread = threading.Thread(target=write, name="progress", daemon=True)
    thread.start()
    try:
        yield lambda *report: reports.__setitem__(slice(None), [report])
    finally:
        is_over.set()
        thread.join()


@contextmanager
def completion_bar(total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` texts are done, the tokens each second and the time left.

    Yields a function to call with the number of tokens of each text that is done. Shows nothing unless `shown`.
    """
    if not shown:
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    rate = TextColumn("{task.fields[rate]}")
    with _bar(BarColumn(), MofNCompleteColumn(), rate, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=total, rate="")
        tokens = 0

        def add(num_tokens: int) -> None:
            nonlocal tokens
            tokens += num_tokens
            elapsed = bar.tasks[task].elapsed or 0.0
            bar.update(task, advance=1, rate=f"{tokens / elapsed:,.0f} tokens/s" if elapsed > 0.0 else "")

        yield add


class TuningBar:
    """The progress bar of a run of the tuner: its losses, the tokens each second and the time left."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None, losses="", rate="")
        self._what = ""
        self._tokens = 0

    def update(self, what: str, done: int, total: int, losses: str, num_tokens: int) -> None:
        """Show what is going on: `done` of `total` updates, and losses in words. `num_tokens` more have been run."""
        if what != self._what:
            self._bar.reset(self._task, description=what)
            self._what, self._tokens = what, 0
        self._tokens += num_tokens
        elapsed = self._bar.tasks[0].elapsed or 0.0
        rate = f"{self._tokens / elapsed:,.0f} tokens/s" if elapsed > 0.0 else ""
        self._bar.update(self._task, completed=done, total=total, losses=losses, rate=rate)

    def print(self, line: str) -> None:
        """Print a line if there is no terminal, which shows the bar instead."""
        if self._bar.disable:
            self._bar.console.print(line, highlight=False)


@contextmanager
def tuning_bar() -> Iterator[TuningBar]:
    """Return a context manager that shows a run of the tuner, and yields its bar."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    texts = [TextColumn(f"{{task.fields[{name}]}}") for name in ("losses", "rate")]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *texts, TimeRemainingColumn())
    with _bar(*columns) as bar:
        yield TuningBar(bar)


def _bar(*columns: ProgressColumn) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    can_show = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
    return Progress(*columns, console=console, transient=True, disable=not can_show)
