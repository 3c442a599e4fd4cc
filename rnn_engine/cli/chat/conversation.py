"""A conversation in the terminal, with its commands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from rnn_engine.chat_template import ChatMessage, Role
from rnn_engine.cli.chat.backend import Backend, ChatPlace, Reply
from rnn_engine.errors import InvalidRequestError
from rnn_engine.loading.settings import StateFile
from rnn_engine.requests import SamplingParams
from rnn_engine.sampling.params import PARAMETERS, Parameter, Seed
from rnn_engine_states.frozen import NO_INITIAL_STATE
from rnn_engine_states.named.table import StateListing


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


# A conversation with a model. Besides messages, commands that begin with a slash may be typed in it.


class QuitError(Exception):
    """Raised by a command to end the conversation."""


class Talk:
    """A conversation with a model, and saved copies to return to. Commands show what they have done."""

    def __init__(
        self, backend: Backend, screen: Screen, sampling: SamplingParams, max_tokens: int, system: str | None
    ) -> None:
        self.backend = backend
        self.screen = screen
        self.forks: dict[str, ChatPlace] = {}
        self.state_names: Sequence[str] = ()  # those that were found last
        self._sampling = backend.check_sampling(sampling)
        self._max_tokens = max_tokens
        self._start: str | None = None  # the name of the state that it begins from; None = the default one
        self._messages: list[ChatMessage] = []
        self._unanswered: str | None = None  # a message whose answer failed before its first text
        self._last: Reply | None = None  # the last answer
        self._begin_with(system)
        self._find_states()

    def begin(self, state: str) -> None:
        """Begin from a state: that of FILE or NAME=FILE, or the one called NAME. The system text is kept."""
        system = self._system
        if "=" in state or Path(state).exists():
            file = StateFile.parse(state)
            self._load_file(file.path, file.name)
        else:
            self._begin_from(state)
        self._begin_with(system)

    def say(self, text: str) -> None:
        """Send a message, and show the model's answer part by part.

        Ctrl-C ends the answer early, and so does a failure, which is raised; the conversation keeps what was shown
        before. If nothing was shown, a failure leaves the conversation unchanged, and `retry` says the message again.
        """
        self._messages.append(ChatMessage(Role.USER, text))
        self._unanswered = text
        self.screen.show(self._answer)

    def run(self, line: str) -> None:
        """Run a command, or show what is wrong with it. Raises QuitError at the end, and what the command raises."""
        word, _, argument = line.removeprefix("/").partition(" ")
        command, argument = COMMANDS.get(word), argument.strip()
        if command is None:
            nearest = get_close_matches(word, COMMANDS, n=1)
            advice = f"did you mean /{nearest[0]}?" if nearest else "/help lists the commands"
            self.screen.complain(f"unknown command /{word}; {advice}")
        elif command.needs_argument and not argument:
            self.screen.complain(f"/{word} needs an argument: {command.arguments}")
        elif argument and not command.arguments:
            self.screen.complain(f"/{word} takes no argument")
        else:
            command.run(self, argument)

    def help(self, _argument: str) -> None:
        width = max(len(f"{command.name} {command.arguments}") for command in COMMANDS.values()) + 2
        for command in COMMANDS.values():
            self.screen.note(f"/{f'{command.name} {command.arguments}':{width}}{command.help}")
        self.screen.note("Enter sends a message, Alt+Enter begins a new line. Ctrl-C stops an answer, Ctrl-D quits.")

    def new(self, _argument: str) -> None:
        self._begin_with(self._system)
        self.screen.note("a new conversation")

    def system(self, text: str) -> None:
        if text:
            self._begin_with(text)
            self.screen.note("a new conversation, with this system text")
        else:
            self.screen.note("no system text" if self._system is None else self._system)

    def undo(self, _argument: str) -> None:
        self.screen.note(f"taken back: {_shortened(self._take_back())}")

    def retry(self, _argument: str) -> None:
        self.say(self._take_back())

    def fork(self, name: str) -> None:
        self.forks[name] = self._place
        self.screen.note(f"put aside; /go {name} continues from here")

    def go(self, name: str) -> None:
        if not name:
            self.screen.note(f"put aside: {', '.join(self.forks) or 'nothing'}")
            return
        if name not in self.forks:
            names = ", ".join(self.forks)
            there = f"there are: {names}" if names else "/fork NAME makes one"
            raise InvalidRequestError("NAME", name, f"one of {names}", f"unknown copy {name!r}; {there}")
        place = self.forks[name]
        self._start, self._messages, self._system = place.start, list(place.messages), place.system
        self._unanswered = None
        last = self._messages[-1].content if self._messages else "none"
        self.screen.note(f"back at {name}; last message: {_shortened(last)}")

    def state(self, name: str) -> None:
        if name:
            kept = self._begin_from(name)
            self.screen.note(
                f"the conversation now begins from {name} and keeps its messages; /retry answers the last message again"
                if kept and self._messages
                else f"a new conversation, from the state {name}"
            )
            return
        default = self._find_states().default or NO_INITIAL_STATE
        current = self._start or default
        for each in self.state_names:
            self.screen.note(f"{'*' if each == current else ' '} {each}{' (the default)' if each == default else ''}")
        self.screen.note("(*: the state from which the conversation begins)")

    def name(self, name: str) -> None:
        self._check_said()
        num_tokens = self.backend.name_state(self._place, name)
        self._find_states()
        self.screen.note(f"the state after {num_tokens} tokens is called {name}; /state {name} continues from it")

    def save(self, file: str) -> None:
        path = Path(file)
        if path.exists():
            raise InvalidRequestError("FILE", file, "a new file", f"{file} exists already; choose another name")
        self._check_said()
        num_tokens = self.backend.save(self._place, path)
        self.screen.note(f"the state after {num_tokens} tokens is in {path}; /load continues from it")

    def load(self, file: str) -> None:
        name = self._load_file(Path(file), None)
        self.screen.note(f"a new conversation, from the state in {file}, which is called {name}")

    def sampling(self, changes: str) -> None:
        if changes:
            changed = dict(_parse_change(word) for word in changes.split())
            self._sampling = self.backend.check_sampling(replace(self._sampling, **changed))
        for parameter in PARAMETERS:
            value = getattr(self._sampling, parameter.name)
            if value != parameter.default or parameter.name in ("temperature", "top_p", "top_k"):
                self.screen.note(f"{parameter.name}={value}")

    def stats(self, _argument: str) -> None:
        last = self._last
        if last is None or last.prompt_tokens is None:
            self.screen.note("no answer yet")
            return
        speed, first = last.tokens_per_second, last.seconds if last.first_seconds is None else last.first_seconds
        self.screen.note(
            f"{last.completion_tokens} tokens in {last.seconds:.2f} s, the first after {first:.2f} s"
            f"{'' if speed is None else f', then {speed:.0f} a second'}; of the prompt's {last.prompt_tokens} tokens "
            f"{last.cached_tokens} were in the cache"
        )

    def quit(self, _argument: str) -> None:
        raise QuitError

    def _begin_with(self, system: str | None) -> None:
        self._system = system
        self._unanswered = None
        self._messages = [] if system is None else [ChatMessage(Role.SYSTEM, system)]

    def _begin_from(self, name: str) -> bool:
        """Start from a state; return True if messages are kept. Raises InvalidRequestError if it is unknown."""
        known = {NO_INITIAL_STATE: 0, **{one.name: one.frozen.num_tokens for one in self._find_states().entries}}
        if name not in known:
            names = ", ".join(known)
            raise InvalidRequestError("NAME", name, f"one of {names}", f"unknown state {name!r}; there are: {names}")
        self._start = name
        is_tuned = known[name] == 0  # it has read no text; None if that is unknown
        if not is_tuned:
            self._begin_with(None)
        return is_tuned

    def _load_file(self, path: Path, name: str | None) -> str:
        self._start = self.backend.load(path, name)
        self._begin_with(None)
        self._find_states()
        return self._start

    def _find_states(self) -> StateListing:
        known = self.backend.states()
        self.state_names = (NO_INITIAL_STATE, *(state.name for state in known.entries))
        return known

    def _take_back(self) -> str:
        """Remove the user's last message and its answer, and return the message. Raises InvalidRequestError."""
        if self._unanswered is not None:
            text, self._unanswered = self._unanswered, None
            return text
        said = [place for place, message in enumerate(self._messages) if message.role is Role.USER]
        if not said:
            raise _nothing_said()
        text = self._messages[said[-1]].content
        del self._messages[said[-1] :]
        return text

    @property
    def _place(self) -> ChatPlace:
        return ChatPlace(self._start, tuple(self._messages), self._system)

    def _check_said(self) -> None:
        if not self._messages:
            raise _nothing_said()

    def _answer(self, on_text: Callable[[str], None]) -> bool:
        """Let the model answer; return True if the answer was not ended early."""
        reply = Reply(on_text)
        finished = True
        try:
            self.backend.answer(self._place, self._sampling, self._max_tokens, reply)
        except KeyboardInterrupt:
            finished = False
        except BaseException:
            if reply.text:
                self._keep(reply.text)
            else:
                self._messages.pop()
            raise
        self._keep(reply.text)
        self._last = reply
        return finished

    def _keep(self, answer: str) -> None:
        self._unanswered = None
        if answer:
            self._messages.append(ChatMessage(Role.ASSISTANT, answer))


def _nothing_said() -> InvalidRequestError:
    return InvalidRequestError("conversation", "empty", "a message", "nothing was said yet")


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


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


_SHOWN: Final = 60
_PARAMETERS: Final[dict[str, Parameter]] = {each.name: each for each in PARAMETERS if each.type in (float, int, Seed)}


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command in a conversation: its name, arguments and help, and the method that runs it."""

    name: str
    arguments: str
    help: str
    run: Callable[[Talk, str], None]
    names: Callable[[Talk], Iterable[str]] = lambda _: ()  # values of its argument, to complete it

    @property
    def needs_argument(self) -> bool:
        return bool(self.arguments) and not self.arguments.startswith("[")


_STATE_HELP: Final = "begins from the state with this name, or lists the states"
_SYSTEM_HELP: Final = "starts a new conversation with a system text, or shows the current one"
COMMANDS: Final = {
    command.name: command
    for command in (
        Command("help", "", "lists the commands", Talk.help),
        Command("new", "", "starts a new conversation", Talk.new),
        Command("system", "[TEXT]", _SYSTEM_HELP, Talk.system),
        Command("undo", "", "takes back the last message and its answer", Talk.undo),
        Command("retry", "", "answers the last message again", Talk.retry),
        Command("fork", "NAME", "puts a copy of the conversation aside", Talk.fork),
        Command("go", "[NAME]", "returns to a copy, or lists the copies", Talk.go, lambda talk: talk.forks),
        Command("state", "[NAME]", _STATE_HELP, Talk.state, lambda talk: talk.state_names),
        Command("name", "NAME", "gives the state of the conversation a name", Talk.name),
        Command("save", "FILE", "writes the state of the conversation to a file", Talk.save),
        Command("load", "FILE", "starts a new conversation from the state in a file", Talk.load),
        Command("sampling", "[NAME=NUMBER ...]", "shows or changes the sampling parameters", Talk.sampling),
        Command("stats", "", "shows how long the last answer took", Talk.stats),
        Command("quit", "", "ends the program", Talk.quit),
        Command("exit", "", "ends the program", Talk.quit),
    )
}
