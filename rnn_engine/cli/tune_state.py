"""`rnn-engine tune-state` and `tune-lora`: tune a model's initial state, or a LoRA, with examples from a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, ParamSpec

import click
import cloup

from rnn_engine.bounds import AUTO, FLAG, Kind, setting
from rnn_engine.cli.options import check_outputs, model_and_file, settings_options
from rnn_engine.errors import InvalidRequestError
from rnn_engine.loading.settings import LoadSettings, LoraSettings

P = ParamSpec("P")


def _parse_held_out(text: str) -> float | Path | None:
    if text == AUTO:
        return None
    try:
        share = float(text)
    except ValueError:
        return Path(text)
    if not 0 < share < 1:
        raise InvalidRequestError("held_out", text, "auto, a share between 0 and 1, or a file")
    return share


def _parse_rate(text: str) -> float | None:
    if text == AUTO:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e6:
        raise InvalidRequestError("rate", text, "auto, or a number greater than 0")
    return rate


_POSITIVE, _NOT_NEGATIVE = Kind(int, low=1), Kind(int, low=0)


@dataclass(frozen=True, slots=True)
class DataOptions:
    """The options of the examples: the held-out part, and what becomes of examples that can't be used."""

    held_out: float | Path | None = setting(
        None, Kind(metavar="auto|SHARE|FILE", parse=_parse_held_out), text=AUTO
    ).help(
        "The share of the examples, or a file with others, by which the state is judged and which it does not learn. "
        "auto is a twentieth, but at least 8 examples, or a fifth if that is fewer."
    )
    bad_lines: Literal["error", "skip"] = setting("error", Kind(choices=("error", "skip"))).help(
        "What becomes of lines that can't be used."
    )
    long_texts: Literal["error", "skip", "cut"] = setting("error", Kind(choices=("error", "skip", "cut"))).help(
        "What becomes of examples with more than --max-tokens tokens; cut learns from their beginning."
    )
    max_tokens: int = setting(1024, _POSITIVE).help(
        "The most tokens of an example, and of examples that run together. More take more memory."
    )


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the run: the number of updates, and the settings of the training."""

    epochs: float | None = setting(None, Kind(float, "NUMBER", low=0, is_open=True)).help(
        "How many times every example is learnt.  [default: 3, and at least 100 updates]"
    )
    steps: int | None = setting(None, _POSITIVE).help("The number of updates, in place of --epochs.")
    batch_size: int = setting(8, _POSITIVE).help("Examples of an update.")
    rate: float | None = setting(None, Kind(metavar="auto|NUMBER", parse=_parse_rate), text=AUTO).help(
        "The learning rate; auto is the best of a short search."
    )
    warm_up: int = setting(10, _NOT_NEGATIVE).help("Updates in which the rate rises.")
    patience: int = setting(5, _NOT_NEGATIVE).help(
        "Stop after so many judgements without a better one, of 20 in a whole run; 0 never stops early. With fewer "
        "than 8 examples held out, a run never stops early."
    )
    max_documents: int = setting(16, _POSITIVE).help("The most examples that run together.")
    checkpoint_seconds: float = setting(60.0, Kind(float, "NUMBER", low=0)).help(
        "Write FILE.checkpoint at least so often."
    )
    seed: int = setting(0).help("Chooses the held-out part, the order, and the random numbers of a LoRA.")


@dataclass(frozen=True, slots=True)
class StateOptions:
    """The options of a state: that at the start, and what of it is trained."""

    init: Path | None = setting(None, Kind(Path, "FILE", exists=True)).help(
        "Start from the state in this file instead of an empty one."
    )
    init_prompt: str | None = setting(None, Kind(metavar="TEXT")).help(
        "Start from the state after the model has read this text."
    )
    any_model: bool = setting(False, FLAG, "--any-model-states").help(
        "Take --init, too, if its file says that it was made for another model."
    )
    train_shifts: bool = setting(False).help(
        "Also train the token shifts, which .st, .pth and .safetensors can't hold."
    )


def _tuning_options(output_help: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Return a decorator that adds the arguments and options which both commands have."""
    file = click.Path(path_type=Path, dir_okay=False)
    adds = (
        click.argument("words", nargs=-1, metavar="[MODEL] DATA -o FILE"),
        click.option("-o", "--output", required=True, type=file, metavar="FILE", help=output_help),
        click.option("--resume", is_flag=True, help="Go on with a run that was interrupted, from FILE.checkpoint."),
        click.option(
            "--report",
            type=file,
            metavar="FILE",
            help="Write the curve of the losses, the samples and all figures to one HTML file.",
        ),
    )

    def add(command: Callable[P, None]) -> Callable[P, None]:
        for each in reversed(adds):
            command = each(command)
        return command

    return add


_data_options = settings_options(DataOptions, title="Examples")
_run_options = settings_options(RunOptions, title="Training")
_model_options = settings_options(
    LoadSettings,
    *("device", "tokenizer", "chat_template", "weights", "device_memory", "loras"),
    title="Model and device",
)


@cloup.command()
@_tuning_options(
    "The state's file. Its name ends in .safetensors or .st (as ai00), .pth (as RWKV-PEFT), .state.safetensors "
    "(as rwkv-metal) or .state (this project's own)."
)
@_data_options
@settings_options(StateOptions, title="State")
@_run_options
@_model_options
@click.pass_context
def tune_state_command(
    context: click.Context,
    loading: LoadSettings,
    run: RunOptions,
    state: StateOptions,
    data: DataOptions,
    /,
    words: tuple[str, ...],
    output: Path,
    resume: bool,
    report: Path | None,
) -> None:
    """Tune a model's initial state with the examples in DATA.

    The weights do not change. The state that is trained is a small file, with which the model starts in place of an
    empty state. DATA has chats, pairs of prompt and completion, or texts, as docs/state-tuning.md describes. The run is
    kept in FILE.checkpoint until it has ended.
    """
    _tune(context, words, output, loading, run, data, state, resume=resume, report=report)


@cloup.command()
@_tuning_options(
    "The LoRA's file. Its name ends in .safetensors, or in .pth, as RWKV-PEFT has it, which does not hold the alpha."
)
@_data_options
@settings_options(LoraSettings, title="LoRA")
@_run_options
@_model_options
@click.pass_context
def tune_lora_command(
    context: click.Context,
    loading: LoadSettings,
    run: RunOptions,
    lora: LoraSettings,
    data: DataOptions,
    /,
    words: tuple[str, ...],
    output: Path,
    resume: bool,
    report: Path | None,
) -> None:
    """Train a LoRA with the examples in DATA.

    The LoRA is a small file, which `--lora FILE` of other commands merges into the weights of the model. DATA has
    chats, pairs of prompt and completion, or texts, as docs/state-tuning.md describes. The weights may have any format;
    they do not change. The run is kept in FILE.checkpoint until it has ended.
    """
    _tune(context, words, output, loading, run, data, lora, resume=resume, report=report)


def _tune(
    context: click.Context,
    words: tuple[str, ...],
    output: Path,
    loading: LoadSettings,
    run: RunOptions,
    data: DataOptions,
    what: StateOptions | LoraSettings,
    *,
    resume: bool,
    report: Path | None,
) -> None:
    model, path = model_and_file(words, "DATA")
    checkpoint = output.with_name(f"{output.name}.checkpoint")
    check_outputs(context, {"-o": output, "--report": report, "FILE.checkpoint": None if resume else checkpoint})
    from rnn_engine.cli.state_tuning import tune

    tune(model, path, output, loading, run, data, what, resume=resume, report=report)
