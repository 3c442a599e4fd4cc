"""What a user types: a line with editing, history and completion on a terminal, or a line of standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TypeAlias

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from rnn_engine.cli.terminal.commands import COMMANDS
from rnn_engine.cli.terminal.talk import Talk
from rnn_engine.user_cache import cache_folder

ReadLine: TypeAlias = Callable[[], str | None]
"""Returns what the user typed, without blanks around it; None at the end."""

_PROMPT = "User: "


def plain_lines() -> str | None:
    """Read a line of standard input."""
    sys.stdout.write(_PROMPT)
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        sys.stdout.write("\n")
        return None
    return line.strip()


def edited_lines(talk: Talk) -> ReadLine:
    """Return what reads lines with editing, and keeps them for the next time."""
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
    """Return the history on disk; one in memory where there can be no file."""
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
    @bindings.add("escape", "c-j")  # as it comes where it was typed before the prompt was there
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


class _CommandCompleter(Completer):
    """Completes the names of commands, and after them paths or names, as they take them."""

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
