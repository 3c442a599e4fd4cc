"""A chat backend that runs the model with an engine in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rnn_engine.chat_template import ChatMessage, Conversation, Role
from rnn_engine.cli.chat.conversation import Backend, ChatPlace, KnownState, KnownStates, Reply, free_name
from rnn_engine.cli.session import EngineChoice, Session, engine_session, with_demo_state
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.operations.chat_prompt import prompt_after
from rnn_engine.operations.naming import check_room, run_tokens
from rnn_engine.requests import GenerateRequest, SamplingParams
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.frozen import NO_INITIAL_STATE, FrozenState
from rnn_engine_states.named.entry import NamedState, Retention
from rnn_engine_states.named.quota import MAX_TTL

_RETENTION: Final = Retention(ttl=MAX_TTL)


@contextmanager
def local_backend(model: Path, loading: LoadSettings, states: StateSettings) -> Iterator[Backend]:
    """Return a context manager that loads a model, and yields the backend that runs it."""
    choice = EngineChoice(model, loading, slots=1, cache=CacheConfig(), states=with_demo_state(model, states))
    with engine_session(choice) as session:
        yield LocalBackend(session)


class LocalBackend:
    """A chat `Backend` with an engine in this process, whose cache keeps the states of what was said."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._engine = session.engine

    @property
    def description(self) -> str:
        return f"{self._engine.info.model} on {self._engine.info.device}"

    def answer(self, place: ChatPlace, sampling: SamplingParams, max_tokens: int, reply: Reply) -> None:
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
        sampling = sampling.resolved(self._engine.tokenize)
        sampling.check(self._engine.info.shape.vocab_size)
        return sampling

    def states(self) -> KnownStates:
        listing = self._session.run(self._engine.states.list())
        return KnownStates(tuple(map(_known, listing.entries)), listing.default)

    def load(self, path: Path, name: str | None = None) -> KnownState:
        files = self._engine.state_files
        loaded = files.read(path)
        frozen = files.freeze(loaded, str(path))
        name = name or free_name(path, [state.name for state in self.states().states])
        put = self._engine.states.put(name, frozen, _RETENTION, source=path.name, form=loaded.form)
        return _known(self._session.run(put))

    def save(self, place: ChatPlace, path: Path) -> int:
        frozen, num_tokens = self._run(place)
        self._engine.state_files.save(path, path.stem, frozen)
        return num_tokens

    def name_state(self, place: ChatPlace, name: str) -> int:
        self._session.run(check_room(self._engine, name, _RETENTION))
        frozen, num_tokens = self._run(place)
        self._session.run(self._engine.states.put(name, frozen, _RETENTION, source="conversation"))
        return num_tokens

    def _run(self, place: ChatPlace) -> tuple[FrozenState, int]:
        initial = self._initial(place.start)
        prompt = prompt_after(self._engine, initial, Conversation(place.messages, answers=False))
        frozen = self._session.run(run_tokens(self._engine, initial, prompt.tokens)).frozen
        return frozen, frozen.num_tokens or len(prompt.tokens)

    def _initial(self, start: str | None) -> FrozenState | None:
        """Return the state called `start`; None is the engine's default. The result None is the fill values."""
        if start is None:
            return self._session.initial
        return None if start == NO_INITIAL_STATE else self._session.run(self._engine.states.get(start)).frozen

    def _earlier_replies(self, messages: Sequence[ChatMessage]) -> list[int]:
        replies = [message.content for message in messages if message.role is Role.ASSISTANT]
        return [token for reply in replies for token in self._engine.tokenize(reply)]


def _known(named: NamedState) -> KnownState:
    return KnownState(named.name, named.frozen.num_tokens)
