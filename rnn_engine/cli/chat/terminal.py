"""The terminal of `rnn-engine chat`, which reads lines, and shows answers and notes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import StringIO
from typing import Final, TextIO

from markdown_it import MarkdownIt
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from rnn_engine.cli.chat.conversation import COMMANDS, QuitError, Screen, Talk
from rnn_engine.errors import RnnEngineError
from rnn_engine.files import cache_folder

_PARSER: Final = MarkdownIt()


class PlainScreen(Screen):
    """A `Screen` for outputs that are no terminal: it writes the answers alone, and all else to standard error."""

    @contextmanager
    def answer(self) -> Iterator[Callable[[str], None]]:
        begun = False

        def show(text: str) -> None:
            nonlocal begun
            text = text if begun else text.lstrip()
            if text:
                _write(text)
                begun = True

        try:
            yield show
        except BaseException:
            if begun:
                _write("\n")
            raise
        _write("\n")

    def note(self, text: str) -> None:
        _write(f"{text}\n", sys.stderr)

    def complain(self, text: str) -> None:
        self.note(text)


def _write(text: str, stream: TextIO | None = None) -> None:
    """Write a text to `stream`, or to standard output, at once."""
    print(text, end="", file=stream, flush=True)


class MarkdownScreen(Screen):
    """A `Screen` that renders markdown as it comes: complete blocks once, the last one again as it grows."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def answer(self) -> Iterator[Callable[[str], None]]:
        blocks = MarkdownBlocks()
        # No thread refreshes: its output could come between the lines that are printed and counted here.
        with Live(console=self._console, auto_refresh=False, vertical_overflow="visible") as live:

            def show(text: str) -> None:
                for block in blocks.add(text):
                    live.console.print(Markdown(block))
                live.update(Markdown(blocks.last), refresh=True)

            yield show

    def note(self, text: str) -> None:
        self._console.print(Text(text, style="dim"))

    def complain(self, text: str) -> None:
        self._console.print(Text(text, style="red"))


class MarkdownBlocks:
    """Divides a markdown text that still grows into blocks (paragraphs, lists, code), and finds which are complete."""

    def __init__(self) -> None:
        self.last = ""

    def add(self, text: str) -> Iterator[str]:
        """Append `text` to the markdown text, and yield the blocks that are complete now."""
        self.last = (self.last + text) if self.last else text.lstrip()
        starts = [token.map[0] for token in _PARSER.parse(self.last) if token.level == 0 and token.map]
        if len(starts) > 1:
            lines = list(StringIO(self.last, newline=""))  # divided at the same characters as by the parser
            yield "".join(lines[: starts[-1]])
            self.last = "".join(lines[starts[-1] :])


# Lines from the user: with editing, history and completion on a terminal, or else from standard input.

_PROMPT = "User: "


def plain_lines() -> str | None:
    """Return a line of standard input without blanks around it, or None at its end. A user is asked for it."""
    if sys.stdin.isatty():
        _write(_PROMPT, sys.stderr)
    line = sys.stdin.readline()
    return line.strip() if line else None


def edited_lines(talk: Talk) -> Callable[[], str | None]:
    """Return a function that reads a line with editing, history and completion. It saves lines for later runs."""
    session: PromptSession[str] = PromptSession(
        _PROMPT,
        history=_history(),
        completer=_CommandCompleter(talk),
        complete_while_typing=False,
        key_bindings=_bindings(),
        prompt_continuation="      ",
        multiline=True,
        enable_open_in_editor=True,
    )

    def read() -> str | None:
        while True:
            try:
                return session.prompt().strip()
            except KeyboardInterrupt:  # drops what was typed
                continue
            except EOFError:
                return None

    return read


def _history() -> History:
    """Return the history of the lines that the user typed: stored in a file, or in memory if no file can be made."""
    path = cache_folder() / "chat-history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    @bindings.add("escape", "c-j")  # what arrives if it was typed before the prompt was shown
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


class _CommandCompleter(Completer):
    """Completes what the user types after a slash: a command's name, then a path or name as its argument."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/"):
            return
        word, space, rest = text[1:].partition(" ")
        if not space:
            for name, command in COMMANDS.items():
                if name.startswith(word):
                    yield Completion(name, -len(word), display_meta=command.help)
        elif word in COMMANDS:
            command = COMMANDS[word]
            if command.arguments == "FILE":
                yield from self._paths.get_completions(Document(rest), complete_event)
            for name in command.names(self._talk):
                if name.startswith(rest):
                    yield Completion(name, -len(rest))


_LOCAL_MODES: Final = 3  # the place of echo and the like in the attributes of a terminal
_MARK_PASTES: Final = "\x1b[?2004h"  # lets the terminal mark where a paste begins and ends
_MARK_NO_PASTES: Final = "\x1b[?2004l"


if sys.platform == "win32":

    def held_input() -> AbstractContextManager[None]:
        """Do nothing: Windows has no such modes of a terminal."""
        return nullcontext()

else:
    import termios

    @contextmanager
    def held_input() -> Iterator[None]:
        """Keep what is typed or pasted while the block runs for the next prompt, and show it only there.

        A paste stays one text, even if it has many lines. Ctrl-C still interrupts, and drops none of the input.
        Standard input and output must be a terminal.
        """
        before = termios.tcgetattr(sys.stdin)
        quiet = list(before)
        quiet[_LOCAL_MODES] = before[_LOCAL_MODES] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
        termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
        _write(_MARK_PASTES)
        try:
            yield
        finally:
            _write(_MARK_NO_PASTES)
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


_HINT: Final = "Ctrl-C stops an answer, /help lists the commands, Ctrl-D quits."


def make_screen() -> Screen:
    """Return a screen for standard output, which shows the answers alone if it is no terminal."""
    console = Console(highlight=False)
    return MarkdownScreen(console) if console.is_terminal else PlainScreen()


def converse(talk: Talk) -> None:
    """Answer each line that is read, until the input ends or a command quits."""
    screen = talk.screen
    edits = sys.stdin.isatty() and isinstance(screen, MarkdownScreen)
    if edits:
        screen.note(f"{talk.backend.description}. {_HINT}")
    read_line, hold = (edited_lines(talk), held_input) if edits else (plain_lines, nullcontext)
    while (said := read_line()) is not None:
        try:
            with hold():
                if said.startswith("/"):
                    talk.run(said)
                elif said:
                    talk.say(said)
        except QuitError:
            return
        except KeyboardInterrupt:  # in a command; during an answer, `Talk` handles it
            screen.note("(ended)")
        except (RnnEngineError, OSError) as error:
            screen.complain(str(error))
