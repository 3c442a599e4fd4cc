"""`rnn-engine generate`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rnn_engine.cli.grammar_options import grammar_options
from rnn_engine.cli.mix_options import Starts, mix_options
from rnn_engine.cli.options import (
    device_memory_option,
    device_option,
    lora_option,
    model_argument,
    parse_tokens,
    tokenizer_option,
    v5_epsilon_option,
    weights_option,
)
from rnn_engine.cli.sampling_options import sampling_options
from rnn_engine.cli.session import EngineChoice, engine_session
from rnn_engine.grammar import Grammar
from rnn_engine.model import LoraChoice
from rnn_engine.requests import GenerateRequest, SamplingParams, TextDelta

_BLANK_HINT = (
    "hint: the model wrote nothing but white space. If it was trained to chat, ask it by `rnn-engine chat`, or give "
    "the prompt as its chats have it, such as 'User: ...', a blank line, and 'Assistant:'."
)


@click.command()
@model_argument
@click.option("-p", "--prompt", help="The text to continue.  [default: what comes on standard input]")
@click.option(
    "--tokens",
    callback=parse_tokens,
    metavar="1,2,3|FILE.npy",
    help="Token ids to continue; the answer is token ids, too.",
)
@click.option("--stop", multiple=True, help="End before this text. May be given several times.")
@sampling_options
@grammar_options
@tokenizer_option
@device_option
@weights_option
@device_memory_option
@v5_epsilon_option
@lora_option
@mix_options
def command(
    model: Path,
    prompt: str | None,
    tokens: list[int] | None,
    stop: tuple[str, ...],
    max_tokens: int,
    tokenizer: str,
    device: str,
    weights: str | None,
    device_memory: int | None,
    v5_group_norm_epsilon: float | None,
    loras: tuple[LoraChoice, ...],
    starts: Starts,
    sampling: SamplingParams,
    grammar: Grammar | None,
) -> None:
    """Continue a text and print what follows."""
    if prompt is not None and tokens is not None:
        raise click.UsageError("--prompt and --tokens exclude each other")
    if prompt is None and tokens is None:
        prompt = _read_prompt()
    choice = EngineChoice(
        model,
        tokenizer,
        device,
        slots=max(1, len(starts.files)),
        states=starts.settings,
        v5_group_norm_epsilon=v5_group_norm_epsilon,
        weights=weights,
        device_memory=device_memory,
        loras=loras,
    )
    with engine_session(choice) as session:
        ids = session.engine.tokenize(prompt) or [0] if prompt is not None else tokens
        initial = session.initial
        request = GenerateRequest(
            prompt=ids or [],
            initial_state=None if initial is None else initial.for_request,
            mix=starts.mix(session),
            max_tokens=max_tokens,
            stop=tuple(text.encode() for text in stop),
            sampling=sampling.resolved(session.engine.tokenize),
            grammar=grammar,
        )
        printer = _TextPrinter()
        session.generate(request, printer.print if prompt is not None else _print_ids)
        click.echo()
        if printer.only_blanks and prompt is not None:
            click.echo(_BLANK_HINT, err=True)


def _read_prompt() -> str:
    if sys.stdin.isatty():
        raise click.UsageError("nothing to continue: give --prompt TEXT or --tokens, or pipe a text in")
    prompt = sys.stdin.read()
    if not prompt:
        raise click.UsageError("nothing to continue: standard input is empty; --prompt '' starts from nothing")
    return prompt


class _TextPrinter:
    """Prints text as it comes, and notes whether any of it can be seen."""

    only_blanks = True

    def print(self, delta: TextDelta) -> None:
        self.only_blanks &= not delta.text.strip()
        click.echo(delta.text, nl=False)
        sys.stdout.flush()


def _print_ids(delta: TextDelta) -> None:
    for info in delta.tokens:
        click.echo(f"{info.token} ", nl=False)
    sys.stdout.flush()
