"""`rnn-engine chat`: a conversation on the terminal."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from rnn_engine.cli.options import (
    chat_template_option,
    device_memory_option,
    device_option,
    lora_option,
    model_argument,
    tokenizer_option,
    v5_epsilon_option,
    weights_option,
)
from rnn_engine.cli.sampling_options import sampling_options
from rnn_engine.cli.session import EngineChoice, engine_session
from rnn_engine.cli.state_options import only_state, state_option
from rnn_engine.cli.terminal.commands import QuitError, run_command
from rnn_engine.cli.terminal.line import ReadLine, edited_lines, plain_lines
from rnn_engine.cli.terminal.screen import MarkdownScreen, PlainScreen, Screen, show_answer
from rnn_engine.cli.terminal.talk import Talk
from rnn_engine.errors import RnnEngineError
from rnn_engine.model import LoraChoice
from rnn_engine.requests import SamplingParams
from states.cache.config import CacheConfig

_HINT = "Ctrl-C ends an answer, /help lists what else there is, Ctrl-D leaves."


@click.command()
@model_argument
@click.option("--system", help="What the model is told before the conversation.")
@sampling_options
@tokenizer_option
@chat_template_option
@device_option
@weights_option
@device_memory_option
@v5_epsilon_option
@lora_option
@state_option
def command(
    model: Path,
    system: str | None,
    max_tokens: int,
    tokenizer: str,
    chat_template: str,
    device: str,
    weights: str | None,
    device_memory: int | None,
    v5_group_norm_epsilon: float | None,
    loras: tuple[LoraChoice, ...],
    state: Path | None,
    sampling: SamplingParams,
) -> None:
    """Talk with a model.

    Lines can be edited and are remembered; Alt+Enter begins a new line in a message. Ctrl-C ends an answer, Ctrl-D
    leaves. /help lists the commands: to take a message back, to put a copy of the conversation aside and return to it,
    to keep its state in a file.
    """
    choice = EngineChoice(
        model,
        tokenizer,
        device,
        slots=1,
        cache=CacheConfig(),
        states=only_state(state),
        v5_group_norm_epsilon=v5_group_norm_epsilon,
        weights=weights,
        device_memory=device_memory,
        loras=loras,
        chat_template=chat_template,
    )
    with engine_session(choice) as session:
        console = Console(highlight=False)
        screen = MarkdownScreen(console) if console.is_terminal else PlainScreen(console)
        screen.note(f"{session.engine.info.model} on {session.engine.info.device}. {_HINT}")
        talk = Talk(session, sampling.resolved(session.engine.tokenize), max_tokens, system)
        converse(talk, screen, edited_lines() if sys.stdin.isatty() and console.is_terminal else plain_lines)


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
        except (RnnEngineError, OSError) as error:
            screen.complain(str(error))
