"""`rnn-engine tune-state`: tune a model's initial state with examples from a file."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from rnn_engine.cli.options import check_outputs, model_and_file
from rnn_engine.cli.state_tuning_options import (
    DataOptions,
    DeviceOptions,
    RunOptions,
    data_options,
    device_options,
    run_options,
)


@cloup.command()
@click.argument("words", nargs=-1, metavar="[MODEL] DATA -o FILE")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The state's file. Its name ends in .safetensors or .st (as ai00), .pth (as RWKV-PEFT), .state.safetensors "
    "(as rwkv-metal) or .state (this project's own).",
)
@click.option("--resume", is_flag=True, help="Go on with a run that was interrupted, from FILE.checkpoint.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the curve of the losses, the samples and all figures to one HTML file.",
)
@data_options
@run_options
@device_options
@click.pass_context
def tune_state_command(
    context: click.Context,
    device: DeviceOptions,
    run: RunOptions,
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
    model, path = model_and_file(words, "DATA")
    checkpoint = output.with_name(f"{output.name}.checkpoint")
    check_outputs(context, {"-o": output, "--report": report, "FILE.checkpoint": None if resume else checkpoint})
    from rnn_engine.cli.state_tuning import tune_state

    tune_state(model, path, output, device, run, data, resume=resume, report=report)
