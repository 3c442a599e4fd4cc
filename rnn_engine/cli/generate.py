"""`rnn-engine generate`: continue a text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rnn_engine.cli.generation_options import Task, grammar_options, sampling_options
from rnn_engine.cli.options import LongCommand, find_model, loading_options, names_model, settings_options
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.sampling.params import SamplingParams

if TYPE_CHECKING:
    from rnn_engine.grammar import Grammar


@click.command(cls=LongCommand)
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]")
@settings_options(Task)
@sampling_options
@grammar_options
@loading_options
@settings_options(StateSettings, "any_model")
def generate_command(
    states: StateSettings,
    loading: LoadSettings,
    grammar: Grammar | None,
    sampling: SamplingParams,
    task: Task,
    /,
    words: tuple[str, ...],
    max_tokens: int,
) -> None:
    """Continue a text and print what follows.

    The text is PROMPT, or what comes on standard input. A single word is MODEL if it names a file, a folder or a model
    that `pull` knows; otherwise it is PROMPT.
    """
    if task.prompt is not None and task.tokens is not None:
        raise click.UsageError("--prompt and --tokens can't be used together")
    if task.chat and task.tokens is not None:
        raise click.UsageError("--chat and --tokens can't be used together")
    model, argument = _divide(words, has_prompt=task.prompt is not None or task.tokens is not None)
    if task.prompt is None and task.tokens is None:
        task = replace(task, prompt=_read_prompt() if argument is None else argument)
    from rnn_engine.cli.generation import generate

    generate(model, loading, states, sampling, grammar, task, max_tokens)


def _divide(words: Sequence[str], *, has_prompt: bool) -> tuple[Path, str | None]:
    """Divide a command's arguments `words` into the model's path and the prompt, which is None if it is missing.

    With `has_prompt`, an option gives the prompt. Raises UsageError for too many arguments, or for a model that can't
    be found.
    """
    if len(words) > (1 if has_prompt else 2):
        allowed = "only MODEL beside --prompt or --tokens" if has_prompt else "MODEL and PROMPT; put PROMPT in quotes"
        raise click.UsageError(f"{len(words)} arguments; expected {allowed}")
    match words:
        case [model, prompt]:
            return find_model(model), prompt
        case [word] if has_prompt or names_model(word):
            return find_model(word), None
        case [word]:
            return find_model(None), word
    return find_model(None), None


def _read_prompt() -> str:
    if sys.stdin.isatty():
        raise click.UsageError("nothing to continue: give PROMPT or --tokens, or pipe a text in")
    prompt = sys.stdin.read().removeprefix("\ufeff")  # a byte-order mark
    if not prompt:
        raise click.UsageError("nothing to continue: standard input is empty; use --prompt '' for an empty prompt")
    return prompt
