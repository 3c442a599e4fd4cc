"""A conversation in the terminal, and the protocol of the backend that answers it: an engine, or a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rnn_engine.chat_template import ChatMessage, Role
from rnn_engine.errors import InvalidRequestError
from rnn_engine.requests import SamplingParams
from rnn_engine_states.frozen import NO_INITIAL_STATE
from rnn_engine_states.named.entry import check_new_name


@dataclass(frozen=True, slots=True)
class ChatPlace:
    """A point in a conversation: the name of the state from which it started, and its messages so far."""

    start: str | None  # None = the default state
    messages: Sequence[ChatMessage]
    system: str | None  # the system text with which the conversation begins again


@dataclass(frozen=True, slots=True)
class KnownState:
    """A named state that a conversation may start from, with its number of tokens."""

    name: str
    num_tokens: int | None  # taken in; 0 for a tuned state, None if unknown

    @property
    def remembers_text(self) -> bool:
        """True if the state was made by running a text, or if that is unknown. False if it was made by training."""
        return self.num_tokens != 0


@dataclass(frozen=True, slots=True)
class KnownStates:
    """The named states that a conversation may start from, and the name of the one that is the default."""

    states: Sequence[KnownState]
    default: str | None  # the name of the default state; None = an empty one


class Backend(Protocol):
    """The protocol through which a conversation uses a model: generate answers, and load and save states.

    Ctrl-C in any method ends what runs and then raises KeyboardInterrupt. Every method raises RnnEngineError if it
    can't do what is asked.
    """

    @property
    def description(self) -> str:
        """The name of the model that answers, and the device or server that runs it, as one line of text."""
        ...

    def answer(self, place: ChatPlace, sampling: SamplingParams, max_tokens: int, reply: Reply) -> None:
        """Generate the answer to the conversation `place`, and pass it to `reply` part by part."""
        ...

    def check_sampling(self, sampling: SamplingParams) -> SamplingParams:
        """Return the sampling parameters in the form that `answer` takes.

        Raises InvalidRequestError for a wrong value.
        """
        ...

    def states(self) -> KnownStates: ...

    def load(self, path: Path, name: str | None = None) -> KnownState:
        """Load the state in a file, so that conversations may start from it; `name` None stands for a free name.

        Raises OSError if the file can't be read.
        """
        ...

    def save(self, place: ChatPlace, path: Path) -> int:
        """Run the messages of a conversation and write the state after them to a new file.

        Return the number of tokens in the state. Raises OSError if the file can't be written.
        """
        ...

    def name_state(self, place: ChatPlace, name: str) -> int:
        """Run the messages of a conversation and store the state after them under a new name.

        Return the number of tokens in the state.
        """
        ...


class Reply:
    """Collects the answer that a backend generates, with token counts and times in seconds, and shows it."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self.text = ""
        self.prompt_tokens: int | None = None  # None: the backend has not said it yet
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.first_seconds: float | None = None  # until the first text
        self.seconds = 0.0  # until the last text, or the end
        self._on_text = on_text
        self._asked = time.monotonic()

    def begin(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Record how many tokens the prompt has, and how many of these came from the cache."""
        self.prompt_tokens, self.cached_tokens = prompt_tokens, cached_tokens

    def add(self, text: str, num_tokens: int = 0) -> None:
        """Append `text`, which has `num_tokens` tokens, to the answer and show it."""
        self.seconds = time.monotonic() - self._asked
        if self.first_seconds is None:
            self.first_seconds = self.seconds
        self.text += text
        self.completion_tokens += num_tokens
        self._on_text(text)

    def end(self, num_tokens: int) -> None:
        """Record how many tokens the whole answer has."""
        self.completion_tokens = num_tokens
        self.seconds = time.monotonic() - self._asked

    @property
    def tokens_per_second(self) -> float | None:
        """The speed of generation after the answer's first token; None if there is no second token."""
        spent = self.seconds - (self.first_seconds or 0.0)
        return (self.completion_tokens - 1) / spent if self.completion_tokens > 1 and spent > 0 else None


def free_name(path: Path, taken: Collection[str]) -> str:
    """Return a name for the state in the file `path` that is not in `taken`: the file's name, or one made from it."""
    name = path.stem
    try:
        check_new_name(name, "FILE")
    except InvalidRequestError:
        name = "loaded"
    names = (name, *(f"{name}-{number}" for number in range(2, len(taken) + 3)))
    return next(each for each in names if each not in taken)


# A conversation with a model: its messages, the state that it starts from, and saved copies to return to.

_EMPTY = KnownState(NO_INITIAL_STATE, 0)


@dataclass
class Talk:
    """A conversation with a model: its messages, the state that it starts from, and saved copies to return to."""

    backend: Backend
    sampling: SamplingParams
    max_tokens: int
    system: str | None = None
    start: str | None = None  # the name of the state that it begins from; None = the default one
    last: Reply | None = None  # the last answer
    forks: dict[str, ChatPlace] = field(default_factory=dict)
    state_names: Sequence[str] = ()  # those that `states` found last

    def __post_init__(self) -> None:
        self.sampling = self.backend.check_sampling(self.sampling)
        self._unanswered: str | None = None  # a message whose answer failed before its first text
        self.messages: list[ChatMessage] = []
        self.new()
        self.states()

    def new(self) -> None:
        """Start the conversation over: remove all messages, and keep the system text and the initial state."""
        self._unanswered = None
        self.messages = [] if self.system is None else [ChatMessage(Role.SYSTEM, self.system)]

    def begin_with(self, system: str | None) -> None:
        """Start the conversation over with the system text `system`, or without one if it is None."""
        self.system = system
        self.new()

    def states(self) -> KnownStates:
        """Return the named states that the conversation may start from, and update `state_names`."""
        known = self.backend.states()
        self.state_names = (NO_INITIAL_STATE, *(state.name for state in known.states))
        return known

    def begin_from(self, name: str) -> bool:
        """Start the conversation from the state called `name` from now on; return True if its messages are kept.

        They are dropped if the state was itself made from a text. Raises InvalidRequestError for a name that is
        unknown.
        """
        known = {state.name: state for state in (_EMPTY, *self.states().states)}
        if name not in known:
            names = ", ".join(known)
            raise InvalidRequestError("NAME", name, f"one of {names}", f"unknown state {name!r}; there are: {names}")
        self.start = name
        if known[name].remembers_text:
            self.begin_with(None)
        return not known[name].remembers_text

    def load(self, path: Path, name: str | None = None) -> str:
        """Load the state in a file and start over from it; return the name under which it was loaded.

        `name` is that name if it is not None. Raises StateError if the state does not fit the model.
        """
        self.start = self.backend.load(path, name).name
        self.begin_with(None)
        self.states()
        return self.start

    def say(self, text: str, on_text: Callable[[str], None]) -> bool:
        """Send the message `text` and pass on the model's answer; return True if the answer was not ended early.

        `on_text` is called with each part of the answer. Ctrl-C ends the answer early, and so does a failure, which is
        raised; the conversation keeps what was shown before. If nothing was shown, a failure leaves the conversation
        unchanged, and `retry` says the message again.
        """
        self.messages.append(ChatMessage(Role.USER, text))
        self._unanswered = text
        return self._answer(on_text)

    def retry(self, on_text: Callable[[str], None]) -> bool:
        """Remove the last answer and let the model answer again. Raises InvalidRequestError if there is no message."""
        return self.say(self.undo(), on_text)

    def undo(self) -> str:
        """Remove the user's last message and its answer from the conversation, and return the message.

        Raises InvalidRequestError if nothing was said yet.
        """
        if self._unanswered is not None:
            text, self._unanswered = self._unanswered, None
            return text
        said = [place for place, message in enumerate(self.messages) if message.role is Role.USER]
        if not said:
            raise _nothing_said()
        text = self.messages[said[-1]].content
        del self.messages[said[-1] :]
        return text

    def fork(self, name: str) -> None:
        """Save a copy of the conversation under `name`, to which `go` returns."""
        self.forks[name] = self._place

    def go(self, name: str) -> None:
        """Replace the conversation by the copy that `fork` saved under `name`.

        Raises InvalidRequestError if there is none.
        """
        fork = self.forks.get(name)
        if fork is None:
            names = ", ".join(self.forks)
            there = f"there are: {names}" if names else "/fork NAME makes one"
            raise InvalidRequestError("NAME", name, f"one of {names}", f"unknown copy {name!r}; {there}")
        self.start, self.messages, self.system = fork.start, list(fork.messages), fork.system
        self._unanswered = None

    def save(self, path: Path) -> int:
        """Write the state after all messages of the conversation to a file; return the number of tokens in the state.

        Raises InvalidRequestError if nothing was said yet, OSError if the file can't be written.
        """
        self._check_said()
        return self.backend.save(self._place, path)

    def name_state(self, name: str) -> int:
        """Store the state after all messages of the conversation under `name`; return its number of tokens.

        Raises InvalidRequestError if nothing was said yet, or if the name can't be used.
        """
        self._check_said()
        num_tokens = self.backend.name_state(self._place, name)
        self.states()
        return num_tokens

    def change_sampling(self, changed: SamplingParams) -> None:
        """Change the sampling parameters of all later answers. Raises InvalidRequestError for a wrong value."""
        self.sampling = self.backend.check_sampling(changed)

    @property
    def _place(self) -> ChatPlace:
        return ChatPlace(self.start, tuple(self.messages), self.system)

    def _check_said(self) -> None:
        if not self.messages:
            raise _nothing_said()

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
        self.last = reply
        return finished

    def _keep(self, answer: str) -> None:
        """Append the model's answer to the conversation's messages, unless it is empty."""
        self._unanswered = None
        if answer:
            self.messages.append(ChatMessage(Role.ASSISTANT, answer))


def _nothing_said() -> InvalidRequestError:
    return InvalidRequestError("conversation", "empty", "a message", "nothing was said yet")
