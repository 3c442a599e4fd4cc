"""`rnn-engine chat`: a conversation on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console

from rnn_engine.cli.options import find_model, loading_options
from rnn_engine.cli.sampling_options import sampling_options
from rnn_engine.cli.session import EngineChoice, engine_session
from rnn_engine.cli.state_options import with_demo_state
from rnn_engine.cli.terminal.backend import Backend
from rnn_engine.cli.terminal.commands import QuitError, run_command
from rnn_engine.cli.terminal.line import ReadLine, edited_lines, plain_lines
from rnn_engine.cli.terminal.local import LocalBackend
from rnn_engine.cli.terminal.screen import MarkdownScreen, PlainScreen, Screen, show_answer
from rnn_engine.cli.terminal.talk import Talk
from rnn_engine.errors import RnnEngineError
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.loading.states import StateSettings
from rnn_engine.requests import SamplingParams
from states.cache.config import CacheConfig

_HINT = "Ctrl-C ends an answer, /help lists what else there is, Ctrl-D leaves."


@click.command()
@click.argument("model", required=False, metavar="[MODEL]")
@click.option(
    "--url",
    metavar="URL",
    help="Talk with a server, such as http://127.0.0.1:65530, and load nothing here; MODEL is then one of its models.",
)
@click.option(
    "--api-key",
    metavar="KEY",
    envvar="RNN_ENGINE_API_KEY",
    show_envvar=True,
    help="The server's API key. Whoever may list this machine's processes can read it here, but not in the variable.",
)
@click.option("--system", help="What the model is told before the conversation.")
@sampling_options
@loading_options
@click.option("--state", metavar="FILE|NAME", help="Begin from the state in this file, or of this name.")
@click.pass_context
def command(
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
    to choose the state that it begins from, to keep its state in a file.
    """
    if url is not None:
        _refuse_options(context, [field.name for field in fields(loading)])
    with _local_backend(find_model(model), loading) if url is None else _remote_backend(url, api_key, model) as backend:
        talk = Talk(backend, sampling, max_tokens, system)
        if state is not None:
            _begin_from(talk, state)
        console = Console(highlight=False)
        screen = MarkdownScreen(console) if console.is_terminal else PlainScreen(console)
        screen.note(f"{backend.description}. {_HINT}")
        converse(talk, screen, edited_lines(talk) if sys.stdin.isatty() and console.is_terminal else plain_lines)


@contextmanager
def _local_backend(model: Path, loading: LoadSettings) -> Iterator[Backend]:
    states = with_demo_state(model, StateSettings())
    choice = EngineChoice(model, loading, slots=1, cache=CacheConfig(), states=states)
    with engine_session(choice) as session:
        yield LocalBackend(session)


def _remote_backend(url: str, api_key: str | None, model: str | None) -> AbstractContextManager[Backend]:
    from rnn_engine.cli.terminal.remote import remote_backend  # its HTTP client takes a while to import

    return remote_backend(url, api_key, model)


def _refuse_options(context: click.Context, names: Iterable[str]) -> None:
    """Raise UsageError where an option was given that only an engine in this process has."""
    for parameter in context.command.params:
        given = parameter.name in names and context.get_parameter_source(parameter.name) == ParameterSource.COMMANDLINE
        if given:
            raise click.UsageError(f"{parameter.opts[0]} has no effect with --url: the server has loaded its model")


def _begin_from(talk: Talk, state: str) -> None:
    """Begin from a state in a file or of a name. A system text is kept."""
    system = talk.system
    if Path(state).exists():
        talk.load(Path(state))
    else:
        talk.begin_from(state)
    talk.begin_with(system)


def converse(talk: Talk, screen: Screen, read_line: ReadLine) -> None:
    """Answer what is read, until it ends or a command says so."""
    while (said := read_line()) is not None:
        try:
            if said.startswith("/"):
                run_command(talk, screen, said)
            elif said:
                show_answer(screen, partial(talk.say, said))
        except QuitError:
            return
        except KeyboardInterrupt:  # of a command; that of an answer is part of the conversation
            screen.note("(ended)")
        except (RnnEngineError, OSError) as error:
            screen.complain(str(error))
