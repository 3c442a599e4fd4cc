"""`rnn-engine chat`: a conversation in the terminal, with a model in this process or on a server."""

from __future__ import annotations

import click

from rnn_engine.cli.generation_options import sampling_options
from rnn_engine.cli.options import (
    LOADING,
    WITH_URL,
    LongCommand,
    api_key_option,
    find_model,
    loading_options,
    parameters_of,
    refuse_options,
    settings_options,
)
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.sampling.params import SamplingParams


@click.command(cls=LongCommand)
@click.argument("model", required=False, metavar="[MODEL]")
@click.option(
    "--url",
    metavar="URL",
    help="Talk with a server, such as http://127.0.0.1:65530, instead of loading a model. MODEL is then one of its "
    "models.",
)
@api_key_option
@click.option("--system", help="The system message at the beginning of the conversation.")
@sampling_options
@loading_options
@click.option(
    "--state",
    metavar="[NAME=]FILE|NAME",
    help="Begin from the state in this file, which gets the name NAME if one is given, or from the state with this "
    "name.",
)
@settings_options(StateSettings, "any_model")
@click.pass_context
def chat_command(
    context: click.Context,
    states: StateSettings,
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
    to choose the state that it begins from, and to keep its state in a file.
    """
    if url is not None:
        own = (*parameters_of(LoadSettings, *LOADING), *parameters_of(StateSettings, "any_model"))
        refuse_options(context, own, WITH_URL)
    from rnn_engine.cli.chat.conversation import Talk
    from rnn_engine.cli.chat.local import local_backend
    from rnn_engine.cli.chat.remote import remote_backend
    from rnn_engine.cli.chat.terminal import converse, make_screen

    backends = remote_backend(url, api_key, model) if url else local_backend(find_model(model), loading, states)
    with backends as backend:
        talk = Talk(backend, make_screen(), sampling, max_tokens, system)
        if state is not None:
            talk.begin(state)
        converse(talk)
