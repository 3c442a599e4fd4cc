"""`rnn-engine batch`: run the requests of a file on a model."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from rnn_engine.cli.options import check_outputs, loading_options, model_and_file, settings_options, slots_option
from rnn_engine.loading.settings import LoadSettings, StateSettings


@cloup.command()
@click.argument("words", nargs=-1, metavar="[MODEL] FILE -o OUT")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="OUT",
    help="The file of the answers: a line of JSON for each, with the custom_id of its request.",
)
@click.option(
    "--errors",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="ERRORS",
    help="The file of the requests that failed; it is written if there are any.  [default: OUT with .errors before its "
    "ending]",
)
@click.option("--resume", is_flag=True, help="Go on with a batch that was interrupted, from the folder OUT.batch.")
@slots_option(8)
@settings_options(StateSettings, "files", "any_model")
@loading_options
@click.pass_context
def batch_command(
    context: click.Context,
    loading: LoadSettings,
    states: StateSettings,
    /,
    words: tuple[str, ...],
    output: Path,
    errors: Path | None,
    resume: bool,
    slots: int,
) -> None:
    """Run the requests in FILE, and write their answers to OUT.

    Each line of FILE is a request as in OpenAI's batches, an object with custom_id, method, url and body; docs/jobs.md
    describes it. All are checked before the first is run. The answers are in no certain order. The batch is kept in the
    folder OUT.batch until it has ended. The exit code is 1 if a request failed.
    """
    errors = errors or output.with_name(f"{output.stem}.errors{output.suffix}")
    check_outputs(context, {"OUT": output, "ERRORS": errors})
    model, file = model_and_file(words, "FILE")
    from rnn_engine.cli.batch.running import BatchTask, end_batch, local_batches, run_batch

    task = BatchTask.open(file, output, errors, resume=resume)
    try:
        with local_batches(model, loading, states, slots, task.folder) as batches:
            batch = run_batch(batches, task)
    finally:
        task.forget_unless_begun()
    end_batch(task, batch)
