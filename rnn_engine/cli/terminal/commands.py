"""What may be typed in a conversation besides messages: commands that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rnn_engine.cli.terminal.screen import Screen, show_answer
from rnn_engine.cli.terminal.talk import Talk
from rnn_engine.errors import InvalidRequestError
from rnn_engine.sampling.params import PARAMETERS, Parameter, Seed
from states.frozen import NO_INITIAL_STATE

_NUMBERS: Final = (float, int, Seed)


class QuitError(Exception):
    """The conversation is to end."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its arguments as the help writes them, what it does, and what runs it."""

    name: str
    arguments: str
    help: str
    run: Callable[[Talk, Screen, str], None]
    names: Callable[[Talk], Iterable[str]] = lambda _: ()  # what its argument may be, to complete it

    @property
    def needs_argument(self) -> bool:
        return bool(self.arguments) and not self.arguments.startswith("[")

    @property
    def takes_file(self) -> bool:
        return self.arguments == "FILE"


def run_command(talk: Talk, screen: Screen, line: str) -> None:
    """Run a line that begins with a slash, and show where it is no command or lacks what it needs.

    Raises QuitError where it says to leave, and what the command raises.
    """
    word, _, argument = line.removeprefix("/").partition(" ")
    command = COMMANDS.get(word)
    argument = argument.strip()
    if command is None:
        screen.complain(f"/{word} is no command; /help lists them")
    elif command.needs_argument and not argument:
        screen.complain(f"/{word} lacks {command.arguments}")
    elif argument and not command.arguments:
        screen.complain(f"/{word} takes nothing after it")
    else:
        command.run(talk, screen, argument)


def _help(_talk: Talk, screen: Screen, _argument: str) -> None:
    width = max(len(f"{command.name} {command.arguments}") for command in COMMANDS.values()) + 2
    for command in COMMANDS.values():
        screen.note(f"/{f'{command.name} {command.arguments}':{width}}{command.help}")
    screen.note("Enter sends a message, Alt+Enter begins a line in it. Ctrl-C ends an answer, Ctrl-D leaves.")


def _new(talk: Talk, screen: Screen, _argument: str) -> None:
    talk.new()
    screen.note("a new conversation")


def _system(talk: Talk, screen: Screen, argument: str) -> None:
    if argument:
        talk.begin_with(argument)
        screen.note("a new conversation, with this system text")
    else:
        screen.note("there is no system text" if talk.system is None else talk.system)


def _undo(talk: Talk, screen: Screen, _argument: str) -> None:
    screen.note(f"taken back: {_shortened(talk.undo())}")


def _retry(talk: Talk, screen: Screen, _argument: str) -> None:
    show_answer(screen, talk.retry)


def _fork(talk: Talk, screen: Screen, argument: str) -> None:
    talk.fork(argument)
    screen.note(f"put aside; /go {argument} goes on from here")


def _go(talk: Talk, screen: Screen, argument: str) -> None:
    if argument:
        talk.go(argument)
        last = talk.messages[-1].content if talk.messages else "nothing"
        screen.note(f"back at {argument}; said last: {_shortened(last)}")
    else:
        screen.note(f"put aside: {', '.join(talk.forks) or 'nothing'}")


def _state(talk: Talk, screen: Screen, argument: str) -> None:
    if argument:
        kept = talk.begin_from(argument)
        screen.note(
            f"the conversation begins from {argument} now, with all that was said; /retry answers the last message anew"
            if kept and talk.messages
            else f"a new conversation, from the state {argument}"
        )
        return
    known = talk.states()
    default = known.default or NO_INITIAL_STATE
    current = talk.start or default
    for name in talk.state_names:
        screen.note(f"{'*' if name == current else ' '} {name}{' (the default)' if name == default else ''}")
    screen.note("(*: the conversation begins from it)")


def _name(talk: Talk, screen: Screen, argument: str) -> None:
    num_tokens = talk.name_state(argument)
    screen.note(f"the state after {num_tokens} tokens is called {argument}; /state {argument} goes on from there")


def _save(talk: Talk, screen: Screen, argument: str) -> None:
    path = Path(argument)
    if path.exists():
        raise InvalidRequestError("FILE", argument, "a new name")
    num_tokens = talk.save(path)
    screen.note(f"the state after {num_tokens} tokens is in {path}; /load goes on from there")


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
    """Read NAME=NUMBER. Raises InvalidRequestError."""
    name, _, text = word.partition("=")
    parameter = _PARAMETERS.get(name)
    if parameter is None:
        raise InvalidRequestError("sampling", word, f"NAME=NUMBER with a name of {', '.join(_PARAMETERS)}")
    try:
        return name, float(text) if parameter.type is float else int(text)
    except ValueError:
        raise InvalidRequestError(name, text, "a number") from None


def _stats(talk: Talk, screen: Screen, _argument: str) -> None:
    statistics = talk.statistics
    if statistics is None:
        screen.note("no answer yet")
        return
    speed = statistics.tokens_per_second
    screen.note(
        f"{statistics.completion_tokens} tokens in {statistics.whole:.2f} s, the first after "
        f"{statistics.first_token:.2f} s{'' if speed is None else f', then {speed:.0f} a second'}; of the prompt's "
        f"{statistics.prompt_tokens} tokens {statistics.cached_tokens} were in the cache"
    )


def _quit(_talk: Talk, _screen: Screen, _argument: str) -> None:
    raise QuitError


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


_SHOWN: Final = 60
_STATE_HELP: Final = "begins from the state of that name, or lists them"
_PARAMETERS: Final[dict[str, Parameter]] = {each.name: each for each in PARAMETERS if each.type in _NUMBERS}
COMMANDS: Final = {
    command.name: command
    for command in (
        Command("help", "", "lists the commands", _help),
        Command("new", "", "starts a new conversation", _new),
        Command("system", "[TEXT]", "starts one with a system text, or shows it", _system),
        Command("undo", "", "takes the last message and its answer back", _undo),
        Command("retry", "", "has the last message answered anew", _retry),
        Command("fork", "NAME", "puts a copy of the conversation aside", _fork),
        Command("go", "[NAME]", "goes on from such a copy, or lists them", _go, lambda talk: talk.forks),
        Command("state", "[NAME]", _STATE_HELP, _state, lambda talk: talk.state_names),
        Command("name", "NAME", "gives the state of the conversation a name", _name),
        Command("save", "FILE", "writes the state of the conversation to a file", _save),
        Command("load", "FILE", "starts a new conversation from the state in a file", _load),
        Command("sampling", "[NAME=NUMBER ...]", "shows or changes how tokens are drawn", _sampling),
        Command("stats", "", "tells how long the last answer took", _stats),
        Command("quit", "", "leaves", _quit),
        Command("exit", "", "leaves", _quit),
    )
}
