"""How a conversation in the terminal uses an engine, and what it knows of the engine's answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rnn_engine.chat_template import ChatMessage, Conversation, Role
from rnn_engine.cli.session import EngineChoice, Session, engine_session, with_demo_state
from rnn_engine.errors import InvalidRequestError
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.operations.chat_prompt import prompt_after
from rnn_engine.operations.naming import check_room, run_tokens
from rnn_engine.requests import GenerateRequest, SamplingParams
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.frozen import NO_INITIAL_STATE, FrozenState
from rnn_engine_states.named.entry import Retention, check_new_name
from rnn_engine_states.named.quota import MAX_TTL
from rnn_engine_states.named.table import StateListing

_RETENTION: Final = Retention(ttl=MAX_TTL)


@dataclass(frozen=True, slots=True)
class ChatPlace:
    """A point in a conversation: the name of the state from which it started, and its messages so far."""

    start: str | None  # None = the default state
    messages: Sequence[ChatMessage]
    system: str | None  # the system text with which the conversation begins again


class Reply:
    """Collects the answer that a backend generates, with token counts and times in seconds, and shows it."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self.text = ""
        self.prompt_tokens: int | None = None  # None: it is not known yet
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


@contextmanager
def open_backend(model: Path, loading: LoadSettings, states: StateSettings) -> Iterator[Backend]:
    """Return a context manager that loads a model, and yields the backend that runs it."""
    choice = EngineChoice(model, loading, slots=1, cache=CacheConfig(), states=with_demo_state(model, states))
    with engine_session(choice) as session:
        yield Backend(session)


class Backend:
    """How a conversation uses an engine, whose cache keeps the states of what was said.

    Methods raise RnnEngineError, and KeyboardInterrupt after Ctrl-C.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._engine = session.engine

    @property
    def description(self) -> str:
        """The name of the model that answers, and the device that runs it, as one line of text."""
        return f"{self._engine.info.model} on {self._engine.info.device}"

    def answer(self, place: ChatPlace, sampling: SamplingParams, max_tokens: int, reply: Reply) -> None:
        """Generate the answer to the conversation `place`, and pass it to `reply` part by part."""
        initial = self._initial(place.start)
        prompt = prompt_after(self._engine, initial, Conversation(place.messages))
        request = GenerateRequest(
            prompt=prompt.tokens,
            initial_state=None if initial is None else initial.for_request,
            turn_positions=tuple(prompt.turns.values()),
            max_tokens=max_tokens,
            stop=tuple(text.encode() for text in prompt.stop),
            stop_tokens=(0, *prompt.stop_tokens),
            sampling=sampling,
            penalised_prompt=self._earlier_replies(place.messages) if sampling.penalises_occurrence else (),
        )
        finished = self._session.generate(
            request,
            lambda delta: reply.add(delta.text, len(delta.tokens)),
            lambda started: reply.begin(started.prompt_tokens, started.cached_tokens),
        )
        reply.end(finished.completion_tokens)

    def check_sampling(self, sampling: SamplingParams) -> SamplingParams:
        """Return the parameters in the form that `answer` takes. Raises InvalidRequestError for a wrong value."""
        sampling = sampling.resolved(self._engine.tokenize)
        sampling.check(self._engine.info.shape.vocab_size)
        return sampling

    def states(self) -> StateListing:
        """Return the named states that a conversation may start from."""
        return self._session.run(self._engine.states.list())

    def load(self, path: Path, name: str | None = None) -> str:
        """Load the state in a file, and return its name; `name` None stands for a free one. Raises OSError."""
        files = self._engine.state_files
        loaded = files.read(path)
        frozen = files.freeze(loaded, str(path))
        name = name or free_name(path, [state.name for state in self.states().entries])
        put = self._engine.states.put(name, frozen, _RETENTION, source=path.name, form=loaded.form)
        return self._session.run(put).name

    def save(self, place: ChatPlace, path: Path) -> int:
        """Write the state after a conversation to a new file, and return its number of tokens. Raises OSError."""
        frozen, num_tokens = self._run(place)
        self._engine.state_files.save(path, path.stem, frozen)
        return num_tokens

    def name_state(self, place: ChatPlace, name: str) -> int:
        """Store the state after a conversation under a new name, and return its number of tokens."""
        self._session.run(check_room(self._engine, name, _RETENTION))
        frozen, num_tokens = self._run(place)
        self._session.run(self._engine.states.put(name, frozen, _RETENTION, source="conversation"))
        return num_tokens

    def _run(self, place: ChatPlace) -> tuple[FrozenState, int]:
        initial = self._initial(place.start)
        prompt = prompt_after(self._engine, initial, Conversation(place.messages, answers=False))
        frozen, _ = self._session.run(run_tokens(self._engine, initial, prompt.tokens))
        return frozen, frozen.num_tokens or len(prompt.tokens)

    def _initial(self, start: str | None) -> FrozenState | None:
        """Return the state called `start`; None is the engine's default. The result None is the fill values."""
        if start is None:
            return self._session.initial
        return None if start == NO_INITIAL_STATE else self._session.run(self._engine.states.get(start)).frozen

    def _earlier_replies(self, messages: Sequence[ChatMessage]) -> list[int]:
        replies = [message.content for message in messages if message.role is Role.ASSISTANT]
        return [token for reply in replies for token in self._engine.tokenize(reply)]
