"""`rnn-engine chat`: a conversation with a model in the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from rnn_engine.bounds import Kind, setting
from rnn_engine.cli.generation_options import sampling_options
from rnn_engine.cli.options import LongCommand, loading_options, model_argument, settings_options
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a conversation begins."""

    system: str | None = setting(None).help("The system message at the beginning of the conversation.")
    state: str | None = setting(None, Kind(metavar="[NAME=]FILE|NAME")).help(
        "Begin from the state in this file, which gets the name NAME if one is given, or from the state with this name."
    )


@click.command(cls=LongCommand)
@model_argument
@settings_options(ChatOptions)
@sampling_options
@loading_options
@settings_options(StateSettings, "any_model")
def chat_command(
    states: StateSettings,
    loading: LoadSettings,
    sampling: SamplingParams,
    chat: ChatOptions,
    /,
    model: Path,
    max_tokens: int,
) -> None:
    """Talk with a model.

    Lines can be edited and are remembered; Alt+Enter begins a new line in a message. Ctrl-C ends an answer, Ctrl-D
    leaves. /help lists the commands: to take a message back, to put a copy of the conversation aside and return to it,
    to choose the state that it begins from, and to keep its state in a file.
    """
    from rnn_engine.cli.chat.backend import open_backend
    from rnn_engine.cli.chat.conversation import Talk
    from rnn_engine.cli.chat.terminal import converse, make_screen

    with open_backend(model, loading, states) as backend:
        talk = Talk(backend, make_screen(), sampling, max_tokens, chat.system)
        if chat.state is not None:
            talk.begin(chat.state)
        converse(talk)
