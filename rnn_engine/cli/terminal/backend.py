"""What a conversation in the terminal needs of whoever answers it: an engine in this process, or a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rnn_engine.chat_template import ChatMessage
from rnn_engine.errors import InvalidRequestError
from rnn_engine.requests import SamplingParams
from states.named.entry import check_new_name


@dataclass(frozen=True, slots=True)
class Place:
    """Where a conversation stands: the name of the state that it began from, and what was said."""

    start: str | None  # None = the default state
    messages: Sequence[ChatMessage]


@dataclass(frozen=True, slots=True)
class KnownState:
    """A state that conversations may begin from."""

    name: str
    num_tokens: int | None  # taken in; 0 for a tuned state, None where nobody told how many

    @property
    def remembers_text(self) -> bool:
        """Whether it has taken in some text."""
        return self.num_tokens != 0


@dataclass(frozen=True, slots=True)
class KnownStates:
    """All of them."""

    states: Sequence[KnownState]
    default: str | None  # the name of the default state; None = an empty one


class Backend(Protocol):
    """Answers conversations, and keeps the states that they begin from.

    Ctrl-C in any method raises KeyboardInterrupt when what ran has been ended. Every method raises RnnEngineError
    where it can't do what is asked.
    """

    @property
    def description(self) -> str:
        """Which model answers, and where."""
        ...

    def answer(self, place: Place, sampling: SamplingParams, max_tokens: int, reply: Reply) -> None:
        """Continue a conversation, and tell `reply` of the answer as it comes."""
        ...

    def check_sampling(self, sampling: SamplingParams) -> SamplingParams:
        """Return `sampling` as `answer` takes it. Raises InvalidRequestError for a value that is not allowed."""
        ...

    def states(self) -> KnownStates: ...

    def load(self, path: Path) -> KnownState:
        """Bring the state in a file among those that can be begun from. Raises OSError where it can't be read."""
        ...

    def save(self, place: Place, path: Path) -> int:
        """Write the state after all that was said to a new file; return how many tokens it has taken in.

        Raises OSError where it can't be written.
        """
        ...

    def name_state(self, place: Place, name: str) -> int:
        """Give the state after all that was said a free name; return how many tokens it has taken in."""
        ...


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


class Reply:
    """An answer on its way."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self.text = ""
        self._on_text = on_text
        self._asked = time.monotonic()
        self._first: float | None = None
        self._prompt: tuple[int, int] | None = None
        self._tokens = 0

    def begin(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Note the size of the prompt, and how much of it was not run since it was in the cache."""
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
        """Return what is known at this moment, if anything."""
        if self._prompt is None:
            return None
        now = time.monotonic()
        first = now if self._first is None else self._first
        return Statistics(*self._prompt, self._tokens, first - self._asked, now - self._asked)


def free_name(path: Path, taken: Collection[str]) -> str:
    """Return a name for the state in a file, after the file's own, that no other state has."""
    name = path.stem
    try:
        check_new_name(name, "FILE")
    except InvalidRequestError:
        name = "loaded"
    names = (name, *(f"{name}-{number}" for number in range(2, len(taken) + 3)))
    return next(each for each in names if each not in taken)
