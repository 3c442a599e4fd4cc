"""A conversation that an engine in this process answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rnn_engine.chat_template import ChatMessage, Conversation, Role
from rnn_engine.cli.session import Session
from rnn_engine.cli.terminal.backend import KnownState, KnownStates, Place, Reply, free_name
from rnn_engine.interface import EngineLike
from rnn_engine.operations.chat_prompt import ChatPrompt, make_chat_prompt
from rnn_engine.operations.naming import check_room, run_tokens, text_before_chat
from rnn_engine.requests import GenerateRequest, SamplingParams, Started, TextDelta
from states.frozen import NO_INITIAL_STATE, FrozenState
from states.named.entry import NamedState, Retention
from states.named.leases import MAX_TTL

_MAX_CHARACTERS: Final = 2**24
_RETENTION: Final = Retention(ttl=MAX_TTL)


class LocalBackend:
    """A `Backend` over an engine. States of what was said are in its cache, so that going back to it runs nothing."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._engine = session.engine

    @property
    def description(self) -> str:
        return f"{self._engine.info.model} on {self._engine.info.device}"

    def answer(self, place: Place, sampling: SamplingParams, max_tokens: int, reply: Reply) -> None:
        initial = self._initial(place.start)
        prompt = prompt_of(self._engine, initial, place.messages)
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

        def begin(started: Started) -> None:
            reply.begin(started.prompt_tokens, started.cached_tokens)

        def add(delta: TextDelta) -> None:
            reply.add(delta.text, len(delta.tokens))

        finished = self._session.generate(request, add, begin)
        reply.end(finished.completion_tokens)

    def check_sampling(self, sampling: SamplingParams) -> SamplingParams:
        sampling = sampling.resolved(self._engine.tokenize)
        sampling.check(self._engine.info.shape.vocab_size)
        return sampling

    def states(self) -> KnownStates:
        listing = self._session.run(self._engine.states.list())
        return KnownStates(tuple(map(_known, listing.entries)), listing.default)

    def load(self, path: Path) -> KnownState:
        files = self._engine.state_files
        loaded = files.read(path)
        frozen = files.freeze(loaded, str(path))
        name = free_name(path, [state.name for state in self.states().states])
        put = self._engine.states.put(name, frozen, _RETENTION, source=path.name, form=loaded.form)
        return _known(self._session.run(put))

    def save(self, place: Place, path: Path) -> int:
        frozen, num_tokens = self._run(place)
        self._engine.state_files.save(path, path.stem, frozen)
        return num_tokens

    def name_state(self, place: Place, name: str) -> int:
        self._session.run(check_room(self._engine, name, _RETENTION))
        frozen, num_tokens = self._run(place)
        self._session.run(self._engine.states.put(name, frozen, _RETENTION, source="conversation"))
        return num_tokens

    def _run(self, place: Place) -> tuple[FrozenState, int]:
        """Return the state after all that was said, and how many tokens it has taken in."""
        initial = self._initial(place.start)
        prompt = prompt_of(self._engine, initial, place.messages, answers=False)
        frozen = self._session.run(run_tokens(self._engine, initial, prompt.tokens)).frozen
        return frozen, frozen.num_tokens or len(prompt.tokens)

    def _initial(self, start: str | None) -> FrozenState | None:
        """Return a state by its name; None is the fill values."""
        if start is None:
            return self._session.initial
        return None if start == NO_INITIAL_STATE else self._session.run(self._engine.states.get(start)).frozen

    def _earlier_replies(self, messages: Sequence[ChatMessage]) -> list[int]:
        replies = [message.content for message in messages if message.role is Role.ASSISTANT]
        return [token for reply in replies for token in self._engine.tokenize(reply)]


def prompt_of(
    engine: EngineLike, initial: FrozenState | None, messages: Sequence[ChatMessage], *, answers: bool = True
) -> ChatPrompt:
    """Return the prompt of a conversation that begins at a state; with `answers` it ends where an answer begins."""
    template = engine.info.chat_template
    before = text_before_chat(engine, initial, template)
    return make_chat_prompt(engine, template, Conversation(messages, answers=answers), _MAX_CHARACTERS, before=before)


def _known(named: NamedState) -> KnownState:
    return KnownState(named.name, named.frozen.num_tokens)
