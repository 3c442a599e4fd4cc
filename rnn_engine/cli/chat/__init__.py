"""`rnn-engine chat`: a conversation in the terminal, with a model in this process or on a server."""

from __future__ import annotations

from dataclasses import dataclass

import click

from rnn_engine.bounds import Kind, setting
from rnn_engine.cli.generation_options import sampling_options
from rnn_engine.cli.options import (
    LOADING,
    WITH_URL,
    LongCommand,
    api_key_setting,
    find_model,
    loading_options,
    parameters_of,
    refuse_options,
    settings_options,
)
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The options for whom to talk with, and how a conversation begins."""

    url: str | None = setting(None, Kind(metavar="URL")).help(
        "Talk with a server, such as http://127.0.0.1:65530, instead of loading a model. MODEL is then one of its "
        "models."
    )
    api_key: str | None = api_key_setting()
    system: str | None = setting(None).help("The system message at the beginning of the conversation.")
    state: str | None = setting(None, Kind(metavar="[NAME=]FILE|NAME")).help(
        "Begin from the state in this file, which gets the name NAME if one is given, or from the state with this name."
    )


@click.command(cls=LongCommand)
@click.argument("model", required=False, metavar="[MODEL]")
@settings_options(ChatOptions)
@sampling_options
@loading_options
@settings_options(StateSettings, "any_model")
@click.pass_context
def chat_command(
    context: click.Context,
    states: StateSettings,
    loading: LoadSettings,
    sampling: SamplingParams,
    chat: ChatOptions,
    /,
    model: str | None,
    max_tokens: int,
) -> None:
    """Talk with a model.

    Lines can be edited and are remembered; Alt+Enter begins a new line in a message. Ctrl-C ends an answer, Ctrl-D
    leaves. /help lists the commands: to take a message back, to put a copy of the conversation aside and return to it,
    to choose the state that it begins from, and to keep its state in a file.
    """
    if chat.url is not None:
        own = (*parameters_of(LoadSettings, *LOADING), *parameters_of(StateSettings, "any_model"))
        refuse_options(context, own, WITH_URL)
    from rnn_engine.cli.chat.conversation import Talk
    from rnn_engine.cli.chat.local import local_backend
    from rnn_engine.cli.chat.remote import remote_backend
    from rnn_engine.cli.chat.terminal import converse, make_screen

    if chat.url is None:
        backends = local_backend(find_model(model), loading, states)
    else:
        backends = remote_backend(chat.url, chat.api_key, model)
    with backends as backend:
        talk = Talk(backend, make_screen(), sampling, max_tokens, chat.system)
        if chat.state is not None:
            talk.begin(chat.state)
        converse(talk)
