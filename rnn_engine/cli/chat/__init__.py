"""`rnn-engine chat`: a conversation in the terminal, with a model in this process or on a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from rnn_engine.chat_template import ChatMessage, Role
from rnn_engine.cli.chat.conversation import Backend, ChatPlace, KnownState, KnownStates, Reply, Talk, free_name
from rnn_engine.cli.generation_options import sampling_options
from rnn_engine.cli.options import find_model, loading_options
from rnn_engine.cli.session import EngineChoice, Session, engine_session, prompt_of
from rnn_engine.cli.state_options import with_demo_state
from rnn_engine.errors import needs_extra
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.operations.naming import check_room, run_tokens
from rnn_engine.requests import GenerateRequest, SamplingParams, Started, TextDelta
from states.cache.config import CacheConfig
from states.frozen import NO_INITIAL_STATE, FrozenState
from states.named.entry import MAX_TTL, NamedState, Retention

_needs_extra = partial(needs_extra, "chat", "a conversation on the terminal", click.UsageError)


@click.command()
@click.argument("model", required=False, metavar="[MODEL]")
@click.option(
    "--url",
    metavar="URL",
    help="Talk with a server, such as http://127.0.0.1:65530, instead of loading a model. MODEL is then one of its "
    "models.",
)
@click.option(
    "--api-key",
    metavar="KEY",
    envvar="RNN_ENGINE_API_KEY",
    show_envvar=True,
    help="The server's API key. Other users of this machine can see this option in the list of processes, but not the "
    "environment variable.",
)
@click.option("--system", help="The system message at the beginning of the conversation.")
@sampling_options
@loading_options
@click.option(
    "--state", metavar="FILE|NAME", help="Begin from the state in this file, or from the state with this name."
)
@click.pass_context
def chat_command(
    context: click.Context,
    loading: LoadSettings,
    sampling: SamplingParams,
    /,
    model: str | None,
    url: str | None,
    api_key: str | None,
    system: str | None,
    max_tokens: int,
    state: str | None,
) -> None:
    """Talk with a model.

    Lines can be edited and are remembered; Alt+Enter begins a new line in a message. Ctrl-C ends an answer, Ctrl-D
    leaves. /help lists the commands: to take a message back, to put a copy of the conversation aside and return to it,
    to choose the state that it begins from, and to keep its state in a file. Needs the extra `chat`.
    """
    with _needs_extra():
        from rnn_engine.cli.chat.terminal import converse
    if url is not None:
        _refuse_options(context, [field.name for field in fields(loading)])
    with (
        _engine_backend(find_model(model), loading) if url is None else _remote_backend(url, api_key, model) as backend
    ):
        talk = Talk(backend, sampling, max_tokens, system)
        if state is not None:
            _begin_from(talk, state)
        converse(talk)


@contextmanager
def _engine_backend(model: Path, loading: LoadSettings) -> Iterator[Backend]:
    states = with_demo_state(model, StateSettings())
    choice = EngineChoice(model, loading, slots=1, cache=CacheConfig(), states=states)
    with engine_session(choice) as session:
        yield LocalBackend(session)


def _remote_backend(url: str, api_key: str | None, model: str | None) -> AbstractContextManager[Backend]:
    with _needs_extra():
        from rnn_engine.cli.chat.remote import remote_backend

    return remote_backend(url, api_key, model)


def _refuse_options(context: click.Context, names: Iterable[str]) -> None:
    """Raise UsageError if the command line has one of the options `names`, which have no effect with --url."""
    for parameter in context.command.params:
        given = parameter.name in names and context.get_parameter_source(parameter.name) == ParameterSource.COMMANDLINE
        if given:
            raise click.UsageError(f"{parameter.opts[0]} can't be used with --url: the server has loaded its model")


def _begin_from(talk: Talk, state: str) -> None:
    """Start the conversation over from a state: the one in the file `state`, or the one called `state`.

    The conversation's system text is kept.
    """
    system = talk.system
    if Path(state).exists():
        talk.load(Path(state))
    else:
        talk.begin_from(state)
    talk.begin_with(system)


_RETENTION: Final = Retention(ttl=MAX_TTL)


class LocalBackend:
    """A chat `Backend` that runs the model with an engine in this process.

    The engine's cache keeps the states of what was said, so that nothing is run again when the user goes back.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._engine = session.engine

    @property
    def description(self) -> str:
        return f"{self._engine.info.model} on {self._engine.info.device}"

    def answer(self, place: ChatPlace, sampling: SamplingParams, max_tokens: int, reply: Reply) -> None:
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
        """Run the messages of a conversation; return the state after them, and the state's number of tokens."""
        initial = self._initial(place.start)
        prompt = prompt_of(self._engine, initial, place.messages, answers=False)
        frozen = self._session.run(run_tokens(self._engine, initial, prompt.tokens)).frozen
        return frozen, frozen.num_tokens or len(prompt.tokens)

    def _initial(self, start: str | None) -> FrozenState | None:
        """Return the state called `start`, or the engine's default state if `start` is None.

        A result of None stands for the fill values.
        """
        if start is None:
            return self._session.initial
        return None if start == NO_INITIAL_STATE else self._session.run(self._engine.states.get(start)).frozen

    def _earlier_replies(self, messages: Sequence[ChatMessage]) -> list[int]:
        replies = [message.content for message in messages if message.role is Role.ASSISTANT]
        return [token for reply in replies for token in self._engine.tokenize(reply)]


def _known(named: NamedState) -> KnownState:
    return KnownState(named.name, named.frozen.num_tokens)
