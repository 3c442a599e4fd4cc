"""A conversation with a model: what was said, from which state it began, and the copies of it that were put aside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rnn_engine.chat_template import ChatMessage, Role
from rnn_engine.cli.terminal.backend import Backend, KnownState, KnownStates, Place, Reply, Statistics
from rnn_engine.errors import InvalidRequestError
from rnn_engine.requests import SamplingParams
from states.frozen import NO_INITIAL_STATE

_EMPTY = KnownState(NO_INITIAL_STATE, 0)


@dataclass
class Talk:
    """A conversation."""

    backend: Backend
    sampling: SamplingParams
    max_tokens: int
    system: str | None = None
    start: str | None = None  # the name of the state that it begins from; None = the default one
    statistics: Statistics | None = None  # of the last answer
    forks: dict[str, Place] = field(default_factory=dict)
    state_names: Sequence[str] = ()  # as `states` found them the last time

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
        """Let the conversation begin from the state of this name; return whether what was said is kept.

        It is not where the state has taken in a text itself. Raises InvalidRequestError for a name that is unknown.
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

        Raises StateError where it does not fit the model.
        """
        self.start = self.backend.load(path).name
        self.begin_with(None)
        self.states()
        return self.start

    def say(self, text: str, on_text: Callable[[str], None]) -> bool:
        """Let the model answer; return whether it came to its end.

        Ctrl-C ends the answer early, and so does a failure, which is raised; the conversation keeps what was shown
        before. Where nothing was shown, a failure leaves the conversation as it was, and `retry` says the message
        again.
        """
        self.messages.append(ChatMessage(Role.USER, text))
        self._unanswered = text
        return self._answer(on_text)

    def retry(self, on_text: Callable[[str], None]) -> bool:
        """Let the model answer the last message anew. Raises InvalidRequestError where nothing was said yet."""
        return self.say(self.undo(), on_text)

    def undo(self) -> str:
        """Take the last message and its answer back, and return the message.

        Raises InvalidRequestError where nothing was said yet.
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
        self.forks[name] = self._place

    def go(self, name: str) -> None:
        """Go on from a copy that was put aside. Raises InvalidRequestError where there is none of that name."""
        place = self.forks.get(name)
        if place is None:
            raise InvalidRequestError("NAME", name, f"one of {', '.join(self.forks) or 'those that /fork made: none'}")
        self.start, self.messages = place.start, list(place.messages)
        self._unanswered = None

    def save(self, path: Path) -> int:
        """Write the state after all that was said to a file, and return how many tokens it has taken in.

        Raises InvalidRequestError where nothing was said yet, OSError where the file can't be written.
        """
        self._check_said()
        return self.backend.save(self._place, path)

    def name_state(self, name: str) -> int:
        """Give the state after all that was said a name, and return how many tokens it has taken in.

        Raises InvalidRequestError where nothing was said yet, or for a name that can't be had.
        """
        self._check_said()
        num_tokens = self.backend.name_state(self._place, name)
        self.states()
        return num_tokens

    def change_sampling(self, changed: SamplingParams) -> None:
        """Draw further tokens otherwise. Raises InvalidRequestError for what is not allowed."""
        self.sampling = self.backend.check_sampling(changed)

    @property
    def _place(self) -> Place:
        return Place(self.start, tuple(self.messages))

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
        """Take an answer, which may be empty, into the conversation."""
        self._unanswered = None
        if answer:
            self.messages.append(ChatMessage(Role.ASSISTANT, answer))
