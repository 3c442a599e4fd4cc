"""A conversation with a model: what was said, from which state it began, and the copies of it that were put aside."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rnn_engine.chat_template import ChatMessage, Conversation, Role
from rnn_engine.cli.session import Session
from rnn_engine.errors import InvalidRequestError
from rnn_engine.interface import EngineLike
from rnn_engine.operations.chat_prompt import ChatPrompt, make_chat_prompt
from rnn_engine.operations.naming import run_tokens, text_before_chat
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams, Started, TextDelta
from states.frozen import FrozenState

_MAX_CHARACTERS: Final = 2**24


@dataclass(frozen=True, slots=True)
class Statistics:
    """How an answer came about. Times in seconds."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token: float
    whole: float

    @property
    def tokens_per_second(self) -> float | None:
        """The speed after the first token; None where there are no two."""
        spent = self.whole - self.first_token
        return (self.completion_tokens - 1) / spent if self.completion_tokens > 1 and spent > 0 else None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a conversation stands."""

    initial: FrozenState | None
    messages: tuple[ChatMessage, ...]


@dataclass
class Talk:
    """A conversation. States of what was said are in the engine's cache, so that going back to it runs nothing."""

    session: Session
    sampling: SamplingParams
    max_tokens: int
    system: str | None = None
    statistics: Statistics | None = None  # of the last answer
    forks: dict[str, _Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._initial = self.session.initial
        self._unanswered: str | None = None  # a message whose answer failed before its first text
        self.messages: list[ChatMessage] = []
        self.new()

    def new(self) -> None:
        """Begin again, with the same system text and the same initial state."""
        self._unanswered = None
        self.messages = [] if self.system is None else [ChatMessage(Role.SYSTEM, self.system)]

    def begin_with(self, system: str | None) -> None:
        """Begin again with another system text."""
        self.system = system
        self.new()

    def begin_from(self, path: Path) -> None:
        """Begin again from the state in a file. Raises StateError where it does not fit the model."""
        files = self.session.engine.state_files
        self._initial = files.freeze(files.read(path), str(path))
        self.begin_with(None)

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
        self.forks[name] = _Place(self._initial, tuple(self.messages))

    def go(self, name: str) -> None:
        """Go on from a copy that was put aside. Raises InvalidRequestError where there is none of that name."""
        place = self.forks.get(name)
        if place is None:
            raise InvalidRequestError("NAME", name, f"one of {', '.join(self.forks) or 'those that /fork made: none'}")
        self._initial, self.messages = place.initial, list(place.messages)
        self._unanswered = None

    def save(self, path: Path) -> int:
        """Write the state after all that was said to a file, and return how many tokens it has taken in.

        Raises InvalidRequestError where nothing was said yet, OSError where the file can't be written.
        """
        if not self.messages:
            raise InvalidRequestError("conversation", "empty", "one in which something was said")
        engine = self.session.engine
        prompt = self._prompt(answers=False)
        frozen = self.session.run(run_tokens(engine, self._initial, prompt.tokens)).frozen
        engine.state_files.save(path, path.stem, frozen)
        return frozen.num_tokens or len(prompt.tokens)

    def change_sampling(self, changed: SamplingParams) -> None:
        """Draw further tokens otherwise. Raises InvalidRequestError for what is not allowed."""
        changed = changed.resolved(self.session.engine.tokenize)
        changed.check(self.session.engine.info.shape.vocab_size)
        self.sampling = changed

    def _answer(self, on_text: Callable[[str], None]) -> bool:
        start = time.monotonic()
        reply = _Reply(on_text)
        try:
            request = self._request()
            finished = self.session.generate(request, reply.add, reply.begin)
        except KeyboardInterrupt:
            finished = None
        except BaseException:
            if reply.text:
                self._keep(reply.text)
            else:
                self.messages.pop()
            raise
        self._keep(reply.text)
        self.statistics = reply.statistics(start, finished)
        return finished is not None

    def _keep(self, answer: str) -> None:
        """Take an answer, which may be empty, into the conversation."""
        self._unanswered = None
        if answer:
            self.messages.append(ChatMessage(Role.ASSISTANT, answer))

    def _request(self) -> GenerateRequest:
        prompt = self._prompt()
        return GenerateRequest(
            prompt=prompt.tokens,
            initial_state=None if self._initial is None else self._initial.for_request,
            turn_positions=tuple(prompt.turns.values()),
            max_tokens=self.max_tokens,
            stop=tuple(text.encode() for text in prompt.stop),
            stop_tokens=(0, *prompt.stop_tokens),
            sampling=self.sampling,
            penalised_prompt=self._earlier_replies(),
        )

    def _prompt(self, *, answers: bool = True) -> ChatPrompt:
        return prompt_of(self.session.engine, self._initial, self.messages, answers=answers)

    def _earlier_replies(self) -> list[int]:
        replies = [message.content for message in self.messages if message.role is Role.ASSISTANT]
        return [token for reply in replies for token in self.session.engine.tokenize(reply)]


def prompt_of(
    engine: EngineLike, initial: FrozenState | None, messages: Sequence[ChatMessage], *, answers: bool = True
) -> ChatPrompt:
    """Return the prompt of a conversation that begins at a state; with `answers` it ends where an answer begins."""
    template = engine.info.chat_template
    before = text_before_chat(engine, initial, template)
    return make_chat_prompt(engine, template, Conversation(messages, answers=answers), _MAX_CHARACTERS, before=before)


class _Reply:
    """An answer on its way."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self.text = ""
        self._on_text = on_text
        self._started: Started | None = None
        self._first: float | None = None
        self._tokens = 0

    def begin(self, started: Started) -> None:
        self._started = started

    def add(self, delta: TextDelta) -> None:
        if self._first is None:
            self._first = time.monotonic()
        self.text += delta.text
        self._tokens += len(delta.tokens)
        self._on_text(delta.text)

    def statistics(self, start: float, finished: Finished | None) -> Statistics | None:
        if self._started is None:
            return None
        end = time.monotonic()
        tokens = self._tokens if finished is None else finished.completion_tokens
        first = end if self._first is None else self._first
        return Statistics(self._started.prompt_tokens, self._started.cached_tokens, tokens, first - start, end - start)
