"""`rnn-engine tune-state` and `tune-lora`: tune a model's initial state, or a LoRA, with examples from a file."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from rnn_engine.cli.options import check_outputs, model_and_file, settings_options
from rnn_engine.cli.tuning_options import DataOptions, RunOptions, StateOptions
from rnn_engine.loading.settings import LoadSettings, LoraSettings


def _make_command(kind: type[StateOptions | LoraSettings], title: str, output_help: str, text: str) -> click.Command:
    """Return the command, with the help `text`, that tunes what options of this kind describe."""
    file = click.Path(path_type=Path, dir_okay=False)

    @cloup.command(help=text)
    @click.argument("words", nargs=-1, metavar="[MODEL] DATA -o FILE")
    @click.option("-o", "--output", required=True, type=file, metavar="FILE", help=output_help)
    @click.option("--resume", is_flag=True, help="Go on with a run that was interrupted, from FILE.checkpoint.")
    @click.option(
        "--report",
        type=file,
        metavar="FILE",
        help="Write the curve of the losses, the samples and all figures to one HTML file.",
    )
    @settings_options(DataOptions, title="Examples")
    @settings_options(kind, title=title)
    @settings_options(RunOptions, title="Training")
    @settings_options(
        LoadSettings,
        *("device", "tokenizer", "chat_template", "weights", "device_memory", "loras"),
        title="Model and device",
    )
    @click.pass_context
    def command(
        context: click.Context,
        loading: LoadSettings,
        run: RunOptions,
        what: StateOptions | LoraSettings,
        data: DataOptions,
        /,
        words: tuple[str, ...],
        output: Path,
        resume: bool,
        report: Path | None,
    ) -> None:
        model, path = model_and_file(words, "DATA")
        checkpoint = output.with_name(f"{output.name}.checkpoint")
        check_outputs(context, {"-o": output, "--report": report, "FILE.checkpoint": None if resume else checkpoint})
        from rnn_engine.cli.state_tuning import tune

        tune(model, path, output, loading, run, data, what, resume=resume, report=report)

    return command


tune_state_command = _make_command(
    StateOptions,
    "State",
    "The state's file. Its name ends in .safetensors or .st (as ai00), .pth (as RWKV-PEFT) or .state "
    "(this project's own).",
    """Tune a model's initial state with the examples in DATA.

    The weights do not change. The state that is trained is a small file, with which the model starts in place of an
    empty state. DATA has chats, pairs of prompt and completion, or texts, as docs/state-tuning.md describes. The run is
    kept in FILE.checkpoint until it has ended.
    """,
)
tune_lora_command = _make_command(
    LoraSettings,
    "LoRA",
    "The LoRA's file. Its name ends in .safetensors, or in .pth, as RWKV-PEFT has it, which does not hold the alpha; "
    "with --train-state, in .state. A name without an ending is that of a folder of PEFT.",
    """Train a LoRA with the examples in DATA.

    The LoRA is a small file, which `--lora FILE` of other commands merges into the weights of the model. DATA has
    chats, pairs of prompt and completion, or texts, as docs/state-tuning.md describes. The weights may have any format;
    they do not change. The run is kept in FILE.checkpoint until it has ended.
    """,
)
