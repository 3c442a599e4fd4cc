"""The terminal of `rnn-engine chat`, which reads lines, runs commands among them, and shows answers and notes."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Final, TypeAlias

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

from rnn_engine.cli.chat.conversation import Talk
from rnn_engine.errors import InvalidRequestError, RnnEngineError
from rnn_engine.files import cache_folder
from rnn_engine.sampling.params import PARAMETERS, Parameter, Seed
from rnn_engine_states.frozen import NO_INITIAL_STATE

_PARSER: Final = MarkdownIt()


class Screen(ABC):
    """Shows a conversation to the user: answers, notes and errors."""

    @abstractmethod
    def answer(self) -> AbstractContextManager[Callable[[str], None]]:
        """Return a context manager for one answer. It yields a function that is called with each part of the answer."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Show a line of information that is no part of an answer."""

    @abstractmethod
    def complain(self, text: str) -> None:
        """Show the error message `text`."""

    def show(self, answer: Callable[[Callable[[str], None]], bool]) -> None:
        """Show one answer part by part, and note if it was ended early.

        `answer` is called with a function that shows text; it returns True if the answer came to its end.
        """
        with self.answer() as show:
            finished = answer(show)
        if not finished:
            self.note("(ended)")


class PlainScreen(Screen):
    """A `Screen` for outputs that are no terminal: it writes the answers alone, and all else to standard error."""

    @contextmanager
    def answer(self) -> Iterator[Callable[[str], None]]:
        begun = False

        def show(text: str) -> None:
            nonlocal begun
            text = text if begun else text.lstrip()
            if text:
                self._write(text)
                begun = True

        try:
            yield show
        except BaseException:
            if begun:
                self._write("\n")
            raise
        self._write("\n")

    def note(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def complain(self, text: str) -> None:
        self.note(text)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


class MarkdownScreen(Screen):
    """A `Screen` that renders answers as markdown while they are generated.

    Blocks that are complete are printed once and scroll away; only the last one is drawn again as it grows.
    """

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


# Besides messages, commands that begin with a slash may be typed in a conversation.

_NUMBERS: Final = (float, int, Seed)


class QuitError(Exception):
    """Raised by a command to end the conversation."""


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command in a conversation: its name, arguments and help, and the function that runs it."""

    name: str
    arguments: str
    help: str
    run: Callable[[Talk, Screen, str], None]
    names: Callable[[Talk], Iterable[str]] = lambda _: ()  # values of its argument, to complete it

    @property
    def needs_argument(self) -> bool:
        return bool(self.arguments) and not self.arguments.startswith("[")

    @property
    def takes_file(self) -> bool:
        return self.arguments == "FILE"


def run_command(talk: Talk, screen: Screen, line: str) -> None:
    """Run the slash command in `line`. Show an error if it is unknown or has a wrong argument.

    Raises QuitError if the command ends the conversation, and what the command raises.
    """
    word, _, argument = line.removeprefix("/").partition(" ")
    command = COMMANDS.get(word)
    argument = argument.strip()
    if command is None:
        nearest = get_close_matches(word, COMMANDS, n=1)
        advice = f"did you mean /{nearest[0]}?" if nearest else "/help lists the commands"
        screen.complain(f"unknown command /{word}; {advice}")
    elif command.needs_argument and not argument:
        screen.complain(f"/{word} needs an argument: {command.arguments}")
    elif argument and not command.arguments:
        screen.complain(f"/{word} takes no argument")
    else:
        command.run(talk, screen, argument)


def _help(_talk: Talk, screen: Screen, _argument: str) -> None:
    width = max(len(f"{command.name} {command.arguments}") for command in COMMANDS.values()) + 2
    for command in COMMANDS.values():
        screen.note(f"/{f'{command.name} {command.arguments}':{width}}{command.help}")
    screen.note("Enter sends a message, Alt+Enter begins a new line. Ctrl-C stops an answer, Ctrl-D quits.")


def _new(talk: Talk, screen: Screen, _argument: str) -> None:
    talk.new()
    screen.note("a new conversation")


def _system(talk: Talk, screen: Screen, argument: str) -> None:
    if argument:
        talk.begin_with(argument)
        screen.note("a new conversation, with this system text")
    else:
        screen.note("no system text" if talk.system is None else talk.system)


def _undo(talk: Talk, screen: Screen, _argument: str) -> None:
    screen.note(f"taken back: {_shortened(talk.undo())}")


def _retry(talk: Talk, screen: Screen, _argument: str) -> None:
    screen.show(talk.retry)


def _fork(talk: Talk, screen: Screen, argument: str) -> None:
    talk.fork(argument)
    screen.note(f"put aside; /go {argument} continues from here")


def _go(talk: Talk, screen: Screen, argument: str) -> None:
    if argument:
        talk.go(argument)
        last = talk.messages[-1].content if talk.messages else "none"
        screen.note(f"back at {argument}; last message: {_shortened(last)}")
    else:
        screen.note(f"put aside: {', '.join(talk.forks) or 'nothing'}")


def _state(talk: Talk, screen: Screen, argument: str) -> None:
    if argument:
        kept = talk.begin_from(argument)
        screen.note(
            f"the conversation now begins from {argument} and keeps its messages; /retry answers the last message again"
            if kept and talk.messages
            else f"a new conversation, from the state {argument}"
        )
        return
    known = talk.states()
    default = known.default or NO_INITIAL_STATE
    current = talk.start or default
    for name in talk.state_names:
        screen.note(f"{'*' if name == current else ' '} {name}{' (the default)' if name == default else ''}")
    screen.note("(*: the state from which the conversation begins)")


def _name(talk: Talk, screen: Screen, argument: str) -> None:
    num_tokens = talk.name_state(argument)
    screen.note(f"the state after {num_tokens} tokens is called {argument}; /state {argument} continues from it")


def _save(talk: Talk, screen: Screen, argument: str) -> None:
    path = Path(argument)
    if path.exists():
        raise InvalidRequestError("FILE", argument, "a new file", f"{argument} exists already; choose another name")
    num_tokens = talk.save(path)
    screen.note(f"the state after {num_tokens} tokens is in {path}; /load continues from it")


def _load(talk: Talk, screen: Screen, argument: str) -> None:
    name = talk.load(Path(argument))
    screen.note(f"a new conversation, from the state in {argument}, which is called {name}")


def _sampling(talk: Talk, screen: Screen, argument: str) -> None:
    if argument:
        changes = dict(_parse_change(word) for word in argument.split())
        talk.change_sampling(replace(talk.sampling, **changes))
    for parameter in PARAMETERS:
        value = getattr(talk.sampling, parameter.name)
        if value != parameter.default or parameter.name in ("temperature", "top_p", "top_k"):
            screen.note(f"{parameter.name}={value}")


def _parse_change(word: str) -> tuple[str, Any]:
    """Parse NAME=NUMBER, a change of a sampling parameter. Raises InvalidRequestError for any other text."""
    name, _, text = word.partition("=")
    parameter = _PARAMETERS.get(name)
    if parameter is None:
        nearest = get_close_matches(name, _PARAMETERS, n=1)
        advice = f"did you mean {nearest[0]!r}?" if nearest else f"there are: {', '.join(_PARAMETERS)}"
        raise InvalidRequestError("sampling", word, "NAME=NUMBER", f"unknown sampling parameter {name!r}; {advice}")
    try:
        return name, float(text) if parameter.type is float else int(text)
    except ValueError:
        raise InvalidRequestError(name, text, "a number") from None


def _stats(talk: Talk, screen: Screen, _argument: str) -> None:
    last = talk.last
    if last is None or last.prompt_tokens is None:
        screen.note("no answer yet")
        return
    speed, first = last.tokens_per_second, last.seconds if last.first_seconds is None else last.first_seconds
    screen.note(
        f"{last.completion_tokens} tokens in {last.seconds:.2f} s, the first after {first:.2f} s"
        f"{'' if speed is None else f', then {speed:.0f} a second'}; of the prompt's {last.prompt_tokens} tokens "
        f"{last.cached_tokens} were in the cache"
    )


def _quit(_talk: Talk, _screen: Screen, _argument: str) -> None:
    raise QuitError


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


_SHOWN: Final = 60
_STATE_HELP: Final = "begins from the state with this name, or lists the states"
_PARAMETERS: Final[dict[str, Parameter]] = {each.name: each for each in PARAMETERS if each.type in _NUMBERS}
COMMANDS: Final = {
    command.name: command
    for command in (
        Command("help", "", "lists the commands", _help),
        Command("new", "", "starts a new conversation", _new),
        Command("system", "[TEXT]", "starts a new conversation with a system text, or shows the current one", _system),
        Command("undo", "", "takes back the last message and its answer", _undo),
        Command("retry", "", "answers the last message again", _retry),
        Command("fork", "NAME", "puts a copy of the conversation aside", _fork),
        Command("go", "[NAME]", "returns to a copy, or lists the copies", _go, lambda talk: talk.forks),
        Command("state", "[NAME]", _STATE_HELP, _state, lambda talk: talk.state_names),
        Command("name", "NAME", "gives the state of the conversation a name", _name),
        Command("save", "FILE", "writes the state of the conversation to a file", _save),
        Command("load", "FILE", "starts a new conversation from the state in a file", _load),
        Command("sampling", "[NAME=NUMBER ...]", "shows or changes the sampling parameters", _sampling),
        Command("stats", "", "shows how long the last answer took", _stats),
        Command("quit", "", "ends the program", _quit),
        Command("exit", "", "ends the program", _quit),
    )
}

# Lines from the user: with editing, history and completion on a terminal, or else from standard input.

ReadLine: TypeAlias = Callable[[], str | None]
"""Returns the text that the user typed, without surrounding white space; None at the end of the input."""

_PROMPT = "User: "


def plain_lines() -> str | None:
    """Return a line of standard input without blanks around it; None at the end of the input.

    If a user types it, they are asked for it on standard error.
    """
    if sys.stdin.isatty():
        sys.stderr.write(_PROMPT)
        sys.stderr.flush()
    line = sys.stdin.readline()
    return line.strip() if line else None


def edited_lines(talk: Talk) -> ReadLine:
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
            if command.takes_file:
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
        _write_through(_MARK_PASTES)
        try:
            yield
        finally:
            _write_through(_MARK_NO_PASTES)
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def _write_through(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


_HINT: Final = "Ctrl-C stops an answer, /help lists the commands, Ctrl-D quits."


def converse(talk: Talk) -> None:
    """Answer each line that is read, until the input ends or a command quits.

    If standard input or output is no terminal, only the answers are written to standard output.
    """
    console = Console(highlight=False)
    screen = MarkdownScreen(console) if console.is_terminal else PlainScreen()
    edits = sys.stdin.isatty() and console.is_terminal
    if edits:
        screen.note(f"{talk.backend.description}. {_HINT}")
    read_line, hold = (edited_lines(talk), held_input) if edits else (plain_lines, nullcontext)
    while (said := read_line()) is not None:
        try:
            with hold():
                if said.startswith("/"):
                    run_command(talk, screen, said)
                elif said:
                    screen.show(partial(talk.say, said))
        except QuitError:
            return
        except KeyboardInterrupt:  # in a command; during an answer, `Talk` handles it
            screen.note("(ended)")
        except (RnnEngineError, OSError) as error:
            screen.complain(str(error))
