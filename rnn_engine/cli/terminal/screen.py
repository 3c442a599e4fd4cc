"""What a conversation shows: answers as they come, and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

from markdown_it import MarkdownIt
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

_PARSER: Final = MarkdownIt()


class Screen(Protocol):
    """Where a conversation is shown."""

    def answer(self) -> AbstractContextManager[Callable[[str], None]]:
        """Give a function that shows more of an answer, for as long as it comes."""
        ...

    def end_answer(self, *, finished: bool) -> None:
        """Mark the end of an answer, which may have been ended early."""
        ...

    def note(self, text: str) -> None:
        """Show a line that is no part of the conversation."""
        ...

    def complain(self, text: str) -> None:
        """Show what went wrong."""
        ...


def show_answer(screen: Screen, answer: Callable[[Callable[[str], None]], bool]) -> None:
    """Show what `answer` says to the function that it gets; it returns whether the answer came to its end."""
    with screen.answer() as show:
        finished = answer(show)
    screen.end_answer(finished=finished)


class PlainScreen:
    """Text as it comes, for outputs that are no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def answer(self) -> Iterator[Callable[[str], None]]:
        self._write("Assistant:")
        begun = False

        def show(text: str) -> None:
            nonlocal begun
            text = text if begun else text.lstrip()
            if text:
                self._write(text if begun else f" {text}")
                begun = True

        try:
            yield show
        except BaseException:
            self._write("\n")
            raise

    def end_answer(self, *, finished: bool) -> None:
        self._write("\n" if finished else " …\n")

    def note(self, text: str) -> None:
        self._write(f"{text}\n")

    complain = note

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()


class MarkdownScreen:
    """Markdown, drawn while it comes.

    Blocks that are complete are printed once and scroll away; only the last one is drawn again as it grows.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def answer(self) -> Iterator[Callable[[str], None]]:
        blocks = Blocks()
        # No refreshing thread: what it writes could come between what is printed here and the lines that this counted.
        with Live(console=self._console, auto_refresh=False, vertical_overflow="visible") as live:

            def show(text: str) -> None:
                for block in blocks.add(text):
                    live.console.print(Markdown(block))
                live.update(Markdown(blocks.last), refresh=True)

            yield show

    def end_answer(self, *, finished: bool) -> None:
        if not finished:
            self.note("(ended)")

    def note(self, text: str) -> None:
        self._console.print(Text(text, style="dim"))

    def complain(self, text: str) -> None:
        self._console.print(Text(text, style="red"))


class Blocks:
    """A text in markdown that grows, cut at its blocks: paragraphs, lists, code."""

    def __init__(self) -> None:
        self.last = ""

    def add(self, text: str) -> Iterator[str]:
        """Take more text in, and yield the blocks that are complete now."""
        self.last = (self.last + text) if self.last else text.lstrip()
        starts = [token.map[0] for token in _PARSER.parse(self.last) if token.level == 0 and token.map]
        if len(starts) > 1:
            lines = self.last.splitlines(keepends=True)
            yield "".join(lines[: starts[-1]])
            self.last = "".join(lines[starts[-1] :])
