"""`rnn-engine generate` and `rnn-engine logits`: continue a text, and write the logits of tokens to a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from rnn_engine.chat_template import ChatMessage, ChatTemplate, Conversation, Role, WorldTemplate
from rnn_engine.cli.generation_options import Starts, grammar_options, mix_options, sampling_options
from rnn_engine.cli.options import (
    Report,
    device_memory_option,
    device_option,
    find_model,
    loading_options,
    lora_option,
    model_argument,
    names_model,
    parse_tokens,
    progress_bar,
    v5_epsilon_option,
    weights_option,
)
from rnn_engine.cli.session import EngineChoice, Session, engine_session, prompt_of
from rnn_engine.cli.state_options import state_option
from rnn_engine.errors import InvalidRequestError
from rnn_engine.files import atomic_file
from rnn_engine.grammar import Grammar
from rnn_engine.loading.memory import plan_memory
from rnn_engine.loading.runner import RunnerSize, load_runner, open_merged
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.model import LoraChoice
from rnn_engine.requests import GenerateRequest, SamplingParams, TextDelta
from rnn_engine.types import F32, Runner, State, TokenRun, run_step
from states.files.exchange import StateFiles
from states.frozen import FrozenState

_BLANK_HINT = (
    "hint: the model wrote only white space. If it was trained to chat, add --chat, or "
    "write the prompt as a turn of its chats, such as 'User: ...', a blank line, and 'Assistant:'."
)
_TURNS_HINT = (
    "hint: this model expects a conversation, and the prompt has no turns; --chat sends it as a user's message."
)
_MAX_CHARACTERS = 2**16


@click.command()
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]")
@click.option("-p", "--prompt", help="The text to continue.  [default: standard input]")
@click.option(
    "--tokens",
    callback=parse_tokens,
    metavar="1,2,3|FILE.npy",
    help="Token ids to continue; the output is token ids, too.",
)
@click.option("--chat", is_flag=True, help="Send the text to the model as a user's message, and print the answer.")
@click.option("--stop", multiple=True, help="Stop before this text. May be given several times.")
@sampling_options
@grammar_options
@loading_options
@mix_options
def generate_command(
    starts: Starts,
    loading: LoadSettings,
    grammar: Grammar | None,
    sampling: SamplingParams,
    /,
    words: tuple[str, ...],
    prompt: str | None,
    tokens: list[int] | None,
    chat: bool,
    stop: tuple[str, ...],
    max_tokens: int,
) -> None:
    """Continue a text and print what follows.

    The text is PROMPT, or what comes on standard input. A single word is MODEL if it names a file, a folder or a model
    that `pull` knows; otherwise it is PROMPT.
    """
    if prompt is not None and tokens is not None:
        raise click.UsageError("--prompt and --tokens can't be used together")
    if chat and tokens is not None:
        raise click.UsageError("--chat and --tokens can't be used together")
    model, argument = _divide(words, has_prompt=prompt is not None or tokens is not None)
    prompt = argument if prompt is None else prompt
    if prompt is None and tokens is None:
        prompt = _read_prompt()
    choice = EngineChoice(model, loading, slots=max(1, len(starts.files)), states=starts.settings)
    with engine_session(choice) as session:
        initial = session.initial
        asked = _read(session, initial, prompt, chat=chat) if prompt is not None else _Asked(tokens or [])
        request = GenerateRequest(
            prompt=asked.tokens,
            initial_state=None if initial is None else initial.for_request,
            mix=starts.mix(session),
            max_tokens=max_tokens,
            stop=tuple(text.encode() for text in (*stop, *asked.stop)),
            stop_tokens=(0, *asked.stop_tokens),
            sampling=sampling.resolved(session.engine.tokenize),
            grammar=grammar,
        )
        lacks_turns = bool(prompt) and not chat and _lacks_turns(session.engine.info.chat_template, prompt or "")
        if lacks_turns:
            click.echo(_TURNS_HINT, err=True)
        printer = _TextPrinter()
        session.generate(request, printer.print if prompt is not None else _print_ids)
        click.echo()
        if printer.only_blanks and prompt is not None and not lacks_turns:
            click.echo(_BLANK_HINT, err=True)


def _divide(words: Sequence[str], *, has_prompt: bool) -> tuple[Path, str | None]:
    """Divide the arguments `words` into the model's path and the prompt, which is None if it is missing.

    With `has_prompt`, an option gives the prompt. Raises UsageError for too many arguments, or for a model that can't
    be found.
    """
    if len(words) > (1 if has_prompt else 2):
        allowed = "only MODEL with --prompt or --tokens" if has_prompt else "MODEL and PROMPT; put PROMPT in quotes"
        raise click.UsageError(f"{len(words)} arguments are not allowed; expected {allowed}")
    match words:
        case [model, prompt]:
            return find_model(model), prompt
        case [word] if has_prompt or names_model(word):
            return find_model(word), None
        case [word]:
            return find_model(None), word
    return find_model(None), None


def _lacks_turns(template: ChatTemplate, prompt: str) -> bool:
    """Return True if `prompt` probably lacks the markers of a chat: the model's own template has them, `prompt` not."""
    if template == WorldTemplate():  # for models that bring none
        return False
    content = "\ue000"  # of private use, so that no template has it
    try:
        text = template.render(Conversation([ChatMessage(Role.USER, content)]), _MAX_CHARACTERS).text
    except InvalidRequestError:  # the template wants more than a message of the user
        return False
    return text.partition(content)[0].strip().rpartition("\n")[2] not in prompt


@dataclass(frozen=True, slots=True)
class _Asked:
    """The input of a generation: prompt tokens, and stop strings and stop tokens besides those that the user gave."""

    tokens: Sequence[int]
    stop: Sequence[str] = ()
    stop_tokens: Sequence[int] = ()


def _read(session: Session, initial: FrozenState | None, prompt: str, *, chat: bool) -> _Asked:
    if not chat:
        return _Asked(session.engine.tokenize(prompt) or [0])
    made = prompt_of(session.engine, initial, [ChatMessage(Role.USER, prompt)])
    return _Asked(made.tokens, made.stop, made.stop_tokens)


def _read_prompt() -> str:
    if sys.stdin.isatty():
        raise click.UsageError("nothing to continue: give PROMPT or --tokens, or pipe a text in")
    prompt = sys.stdin.read()
    if not prompt:
        raise click.UsageError("nothing to continue: standard input is empty; use --prompt '' for an empty prompt")
    return prompt


class _TextPrinter:
    """Prints generated text as it comes, and records if it was white space only."""

    only_blanks = True

    def print(self, delta: TextDelta) -> None:
        self.only_blanks &= not delta.text.strip()
        click.echo(delta.text, nl=False)
        sys.stdout.flush()


def _print_ids(delta: TextDelta) -> None:
    for info in delta.tokens:
        click.echo(f"{info.token} ", nl=False)
    sys.stdout.flush()


# `rnn-engine logits` writes the logits and the state of a forward pass to a file, to compare engines.

_SLOT = 0


@click.command()
@model_argument
@click.option(
    "--tokens", callback=parse_tokens, required=True, metavar="1,2,3|FILE.npy", help="The ids of the tokens to run."
)
@device_option
@v5_epsilon_option
@lora_option
@weights_option
@device_memory_option
@click.option(
    "--chunk",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="How many tokens a step takes; the result does not depend on it.",
)
@state_option
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The .npz file to write."
)
def logits_command(
    model: Path,
    tokens: list[int],
    device: str,
    v5_group_norm_epsilon: float | None,
    loras: tuple[LoraChoice, ...],
    weights: str | None,
    device_memory: int | None,
    chunk: int,
    state: Path | None,
    output: Path,
) -> None:
    """Write the logits of tokens, and the state after them, to a file.

    The tokens run from an empty state unless one is given. The NumPy file holds `logits` [T, V] in f32, one row a
    token, and the state after the last token: for each layer L the fields of the version's state, from RWKV-5 on
    `state.L.att_shift` [D], `state.L.wkv` [H, value, key] and `state.L.ffn_shift` [D].
    """
    size = min(chunk, len(tokens))
    with atomic_file(output) as file, progress_bar("opening the model") as report:
        with open_merged(model, loras, v5_group_norm_epsilon=v5_group_norm_epsilon) as opened:
            _check(tokens, opened.shape.vocab_size)
            initial = None if state is None else StateFiles(opened.shape, opened.fingerprint).read(state).state
            room = RunnerSize(num_slots=1, max_tokens=size, max_rows=size)
            plan = plan_memory(opened, device, room, weights=weights, device_memory=device_memory)
            runner = load_runner(
                opened, device, weights=plan.weights, num_slots=1, max_tokens=size, max_rows=size, progress=report
            )
        with closing(runner):
            logits = run_logits(runner, tokens, size, report, initial)
            np.savez(file, allow_pickle=False, logits=logits, **_read_state(runner))


def _check(tokens: Sequence[int], vocab_size: int) -> None:
    if not tokens:
        raise InvalidRequestError("--tokens", list(tokens), "at least one token id")
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise InvalidRequestError("--tokens", token, f"token ids from 0 to {vocab_size - 1}")


def run_logits(runner: Runner, tokens: Sequence[int], chunk: int, report: Report, initial: State | None) -> F32:
    """Return the logits [T, V] after each token of a sequence that starts from the state `initial`.

    A step runs `chunk` tokens. `report` is called with the progress.
    """
    logits = np.empty((len(tokens), runner.shape.vocab_size), np.float32)
    runner.write_state(_SLOT, initial)
    for start in range(0, len(tokens), chunk):
        report("running the tokens", start, len(tokens))
        part = tokens[start : start + chunk]
        readout = run_step(runner, [TokenRun(_SLOT, part, rows=len(part))])
        for row in range(len(part)):
            logits[start + row] = readout.full_row(row)
    return logits


def _read_state(runner: Runner) -> dict[str, F32]:
    """Return the state of the sequence as arrays, one for each layer and field, named "state.LAYER.FIELD"."""
    return {
        f"state.{layer}.{name}": values
        for name, layers in runner.read_state(_SLOT).items()
        for layer, values in enumerate(layers)
    }
