"""The options of `rnn-engine tune-state`: the examples, the run, and the device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from rnn_engine.cli.options import (
    FiniteRange,
    bad_value,
    chat_template_option,
    device_memory_option,
    device_option,
    lora_option,
    option_group,
    tokenizer_option,
    weights_option,
)

if TYPE_CHECKING:
    from rnn_engine.model import LoraChoice


@dataclass(frozen=True, slots=True)
class DataOptions:
    """The options of the examples: the held-out part, and what becomes of examples that can't be used."""

    held_out: float | Path | None
    bad_lines: Literal["error", "skip"]
    long_texts: Literal["error", "skip", "cut"]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the run: the state at the start, the number of updates, and the settings of the training."""

    init: Path | None
    init_prompt: str | None
    any_model_states: bool
    train_shifts: bool
    epochs: float | None
    steps: int | None
    batch_size: int
    rate: float | None
    warm_up: int
    patience: int
    max_documents: int
    checkpoint_seconds: float
    seed: int


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """The options of the model and of the device that trains."""

    tokenizer: str
    chat_template: str
    device: str
    weights: str | None
    device_memory: int | None
    loras: tuple[LoraChoice, ...]


def _held_out(_context: click.Context, _parameter: click.Parameter, value: str) -> float | Path | None:
    if value == "auto":
        return None
    try:
        share = float(value)
    except ValueError:
        return Path(value)
    if not 0 < share < 1:
        raise bad_value(value, "auto, a share between 0 and 1, or a file")
    return share


def _rate(_context: click.Context, _parameter: click.Parameter, value: str) -> float | None:
    if value == "auto":
        return None
    try:
        rate = float(value)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e6:
        raise bad_value(value, "auto, or a number greater than 0")
    return rate


data_options = option_group(
    "Examples",
    DataOptions,
    click.option(
        "--held-out",
        callback=_held_out,
        metavar="auto|SHARE|FILE",
        default="auto",
        show_default=True,
        help="The share of the examples, or a file with others, by which the state is judged and which it does not "
        "learn. auto is a twentieth, but at least 8 examples, or a fifth if that is fewer.",
    ),
    click.option(
        "--bad-lines",
        type=click.Choice(["error", "skip"]),
        default="error",
        show_default=True,
        help="What becomes of lines that can't be used.",
    ),
    click.option(
        "--long-texts",
        type=click.Choice(["error", "skip", "cut"]),
        default="error",
        show_default=True,
        help="What becomes of examples with more than --max-tokens tokens; cut learns from their beginning.",
    ),
    click.option(
        "--max-tokens",
        type=click.IntRange(min=1),
        default=1024,
        show_default=True,
        help="The most tokens of an example, and of examples that run together. More take more memory.",
    ),
)
run_options = option_group(
    "Training",
    RunOptions,
    click.option(
        "--init",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        metavar="FILE",
        help="Start from the state in this file instead of an empty one.",
    ),
    click.option("--init-prompt", metavar="TEXT", help="Start from the state after the model has read this text."),
    click.option(
        "--any-model-states",
        is_flag=True,
        help="Take --init, too, if its file says that it was made for another model.",
    ),
    click.option(
        "--train-shifts", is_flag=True, help="Also train the token shifts, which .st, .pth and .safetensors can't hold."
    ),
    click.option(
        "--epochs",
        type=FiniteRange(min=0, min_open=True),
        metavar="NUMBER",
        help="How many times every example is learnt.  [default: 3, and at least 100 updates]",
    ),
    click.option("--steps", type=click.IntRange(min=1), help="The number of updates, in place of --epochs."),
    click.option(
        "--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Examples of an update."
    ),
    click.option(
        "--rate",
        callback=_rate,
        metavar="auto|NUMBER",
        default="auto",
        show_default=True,
        help="The learning rate; auto is the best of a short search.",
    ),
    click.option(
        "--warm-up", type=click.IntRange(min=0), default=10, show_default=True, help="Updates in which the rate rises."
    ),
    click.option(
        "--patience",
        type=click.IntRange(min=0),
        default=5,
        show_default=True,
        help="Stop after so many judgements without a better one, of 20 in a whole run; 0 never stops early. "
        "With fewer than 8 examples held out, a run never stops early.",
    ),
    click.option(
        "--max-documents",
        type=click.IntRange(min=1),
        default=16,
        show_default=True,
        help="The most examples that run together.",
    ),
    click.option(
        "--checkpoint-seconds",
        type=FiniteRange(min=0),
        metavar="NUMBER",
        default=60.0,
        show_default=True,
        help="Write FILE.checkpoint at least so often.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Chooses the held-out part and the order."),
)
device_options = option_group(
    "Model and device",
    DeviceOptions,
    tokenizer_option,
    chat_template_option,
    device_option,
    weights_option,
    device_memory_option,
    lora_option,
)
