"""A conversation in the terminal, and the backend that answers it: an engine in this process, or a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rnn_engine.chat_template import ChatMessage, Role
from rnn_engine.errors import InvalidRequestError
from rnn_engine.requests import SamplingParams
from states.frozen import NO_INITIAL_STATE
from states.named.entry import check_new_name


@dataclass(frozen=True, slots=True)
class ChatPlace:
    """A point in a conversation: the name of the state that it began from, and what was said."""

    start: str | None  # None = the default state
    messages: Sequence[ChatMessage]


@dataclass(frozen=True, slots=True)
class Fork:
    """A copy of a conversation that was put aside."""

    place: ChatPlace
    system: str | None  # the system text with which the conversation begins again


@dataclass(frozen=True, slots=True)
class KnownState:
    """A state that conversations may begin from."""

    name: str
    num_tokens: int | None  # taken in; 0 for a tuned state, None if unknown

    @property
    def remembers_text(self) -> bool:
        """Whether the state has taken in some text."""
        return self.num_tokens != 0


@dataclass(frozen=True, slots=True)
class KnownStates:
    """All states that conversations may begin from."""

    states: Sequence[KnownState]
    default: str | None  # the name of the default state; None = an empty one


class Backend(Protocol):
    """Answers conversations, and keeps the states that they begin from.

    Ctrl-C in any method ends what runs and then raises KeyboardInterrupt. Every method raises RnnEngineError if it
    can't do what is asked.
    """

    @property
    def description(self) -> str:
        """The model that answers, and the device or server that runs it."""
        ...

    def answer(self, place: ChatPlace, sampling: SamplingParams, max_tokens: int, reply: Reply) -> None:
        """Continue a conversation, and pass the answer to `reply` as it comes."""
        ...

    def check_sampling(self, sampling: SamplingParams) -> SamplingParams:
        """Return `sampling` as `answer` takes it. Raises InvalidRequestError for a value that is not allowed."""
        ...

    def states(self) -> KnownStates: ...

    def load(self, path: Path) -> KnownState:
        """Add the state in a file to those that conversations may begin from. Raises OSError if it can't be read."""
        ...

    def save(self, place: ChatPlace, path: Path) -> int:
        """Write the state after all that was said to a new file; return how many tokens it has taken in.

        Raises OSError if it can't be written.
        """
        ...

    def name_state(self, place: ChatPlace, name: str) -> int:
        """Give the state after all that was said a free name; return how many tokens it has taken in."""
        ...


@dataclass(frozen=True, slots=True)
class Statistics:
    """The sizes and times of an answer. Times are in seconds."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token: float
    whole: float

    @property
    def tokens_per_second(self) -> float | None:
        """The speed after the first token; None if there is no second token."""
        spent = self.whole - self.first_token
        return (self.completion_tokens - 1) / spent if self.completion_tokens > 1 and spent > 0 else None


class Reply:
    """An answer while it comes."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self.text = ""
        self._on_text = on_text
        self._asked = time.monotonic()
        self._first: float | None = None
        self._prompt: tuple[int, int] | None = None
        self._tokens = 0

    def begin(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Note the size of the prompt, and how much of it was in the cache and so not run."""
        self._prompt = (prompt_tokens, cached_tokens)

    def add(self, text: str, num_tokens: int = 0) -> None:
        """Show more of the answer."""
        if self._first is None:
            self._first = time.monotonic()
        self.text += text
        self._tokens += num_tokens
        self._on_text(text)

    def end(self, num_tokens: int) -> None:
        """Note how many tokens the whole answer has."""
        self._tokens = num_tokens

    def statistics(self) -> Statistics | None:
        """Return what is known at this moment; None before `begin`."""
        if self._prompt is None:
            return None
        now = time.monotonic()
        first = now if self._first is None else self._first
        return Statistics(*self._prompt, self._tokens, first - self._asked, now - self._asked)


def free_name(path: Path, taken: Collection[str]) -> str:
    """Return a name for the state in a file that no other state has: the file's own, or one made from it."""
    name = path.stem
    try:
        check_new_name(name, "FILE")
    except InvalidRequestError:
        name = "loaded"
    names = (name, *(f"{name}-{number}" for number in range(2, len(taken) + 3)))
    return next(each for each in names if each not in taken)


# A conversation with a model: its messages, the state that it begins from, and copies that were put aside.

_EMPTY = KnownState(NO_INITIAL_STATE, 0)


@dataclass
class Talk:
    """A conversation: its messages, the state that it begins from, and its copies."""

    backend: Backend
    sampling: SamplingParams
    max_tokens: int
    system: str | None = None
    start: str | None = None  # the name of the state that it begins from; None = the default one
    statistics: Statistics | None = None  # of the last answer
    forks: dict[str, Fork] = field(default_factory=dict)
    state_names: Sequence[str] = ()  # those that `states` found last

    def __post_init__(self) -> None:
        self.sampling = self.backend.check_sampling(self.sampling)
        self._unanswered: str | None = None  # a message whose answer failed before its first text
        self.messages: list[ChatMessage] = []
        self.new()
        self.states()

    def new(self) -> None:
        """Begin again, with the same system text and the same initial state."""
        self._unanswered = None
        self.messages = [] if self.system is None else [ChatMessage(Role.SYSTEM, self.system)]

    def begin_with(self, system: str | None) -> None:
        """Begin again with another system text."""
        self.system = system
        self.new()

    def states(self) -> KnownStates:
        """Return the states that the conversation may begin from."""
        known = self.backend.states()
        self.state_names = (NO_INITIAL_STATE, *(state.name for state in known.states))
        return known

    def begin_from(self, name: str) -> bool:
        """Let the conversation begin from the state with this name; return True if what was said is kept.

        It is dropped if the state has taken in a text itself. Raises InvalidRequestError for a name that is unknown.
        """
        known = {state.name: state for state in (_EMPTY, *self.states().states)}
        if name not in known:
            raise InvalidRequestError("NAME", name, f"one of {', '.join(known)}")
        self.start = name
        if known[name].remembers_text:
            self.begin_with(None)
        return not known[name].remembers_text

    def load(self, path: Path) -> str:
        """Begin again from the state in a file, and return the name that it has now.

        Raises StateError if it does not fit the model.
        """
        self.start = self.backend.load(path).name
        self.begin_with(None)
        self.states()
        return self.start

    def say(self, text: str, on_text: Callable[[str], None]) -> bool:
        """Let the model answer `text`; return True if the answer came to its end.

        Ctrl-C ends the answer early, and so does a failure, which is raised; the conversation keeps what was shown
        before. If nothing was shown, a failure leaves the conversation unchanged, and `retry` says the message again.
        """
        self.messages.append(ChatMessage(Role.USER, text))
        self._unanswered = text
        return self._answer(on_text)

    def retry(self, on_text: Callable[[str], None]) -> bool:
        """Let the model answer the last message anew. Raises InvalidRequestError if nothing was said yet."""
        return self.say(self.undo(), on_text)

    def undo(self) -> str:
        """Take the last message and its answer back, and return the message.

        Raises InvalidRequestError if nothing was said yet.
        """
        if self._unanswered is not None:
            text, self._unanswered = self._unanswered, None
            return text
        said = [place for place, message in enumerate(self.messages) if message.role is Role.USER]
        if not said:
            raise InvalidRequestError("conversation", "empty", "one in which something was said")
        text = self.messages[said[-1]].content
        del self.messages[said[-1] :]
        return text

    def fork(self, name: str) -> None:
        """Put a copy of the conversation aside under a name."""
        self.forks[name] = Fork(self._place, self.system)

    def go(self, name: str) -> None:
        """Go on from a copy that was put aside. Raises InvalidRequestError if there is none with that name."""
        fork = self.forks.get(name)
        if fork is None:
            raise InvalidRequestError("NAME", name, f"one of {', '.join(self.forks) or 'those that /fork made: none'}")
        self.start, self.messages, self.system = fork.place.start, list(fork.place.messages), fork.system
        self._unanswered = None

    def save(self, path: Path) -> int:
        """Write the state after all that was said to a file, and return how many tokens it has taken in.

        Raises InvalidRequestError if nothing was said yet, OSError if the file can't be written.
        """
        self._check_said()
        return self.backend.save(self._place, path)

    def name_state(self, name: str) -> int:
        """Give the state after all that was said a name, and return how many tokens it has taken in.

        Raises InvalidRequestError if nothing was said yet, or if the name can't be used.
        """
        self._check_said()
        num_tokens = self.backend.name_state(self._place, name)
        self.states()
        return num_tokens

    def change_sampling(self, changed: SamplingParams) -> None:
        """Change how further tokens are drawn. Raises InvalidRequestError for a value that is not allowed."""
        self.sampling = self.backend.check_sampling(changed)

    @property
    def _place(self) -> ChatPlace:
        return ChatPlace(self.start, tuple(self.messages))

    def _check_said(self) -> None:
        if not self.messages:
            raise InvalidRequestError("conversation", "empty", "one in which something was said")

    def _answer(self, on_text: Callable[[str], None]) -> bool:
        reply = Reply(on_text)
        finished = True
        try:
            self.backend.answer(self._place, self.sampling, self.max_tokens, reply)
        except KeyboardInterrupt:
            finished = False
        except BaseException:
            if reply.text:
                self._keep(reply.text)
            else:
                self.messages.pop()
            raise
        self._keep(reply.text)
        self.statistics = reply.statistics()
        return finished

    def _keep(self, answer: str) -> None:
        """Add an answer, which may be empty, to the conversation."""
        self._unanswered = None
        if answer:
            self.messages.append(ChatMessage(Role.ASSISTANT, answer))
