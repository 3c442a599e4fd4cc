"""Progress bars on the terminal's error output, or in a notebook that has ipywidgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

Report: TypeAlias = Callable[[str, int, int], None]
"""Takes the current task, the number of parts that are done, and that of all parts. May be called on any thread."""


@contextmanager
def progress_bar(title: str) -> Iterator[Report]:
    """Return a context manager that shows a progress bar while its block runs, and yields a function to update it."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    with _bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task(title, total=None)

        def report(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield report


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


def _bar(*columns: ProgressColumn) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    can_show = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
    return Progress(*columns, console=console, transient=True, disable=not can_show)
