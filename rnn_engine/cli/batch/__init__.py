"""`rnn-engine batch`: run the requests of a file, on a model in this process or on a server."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import click
import cloup

from rnn_engine.bounds import Kind, setting
from rnn_engine.cli.options import (
    LOADING,
    WITH_URL,
    api_key_setting,
    check_outputs,
    loading_options,
    model_and_file,
    parameters_of,
    refuse_options,
    settings_options,
    slots_option,
)
from rnn_engine.loading.settings import LoadSettings, StateSettings

_STATES = ("files", "any_model")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options of a server that runs the batch."""

    url: str | None = setting(None, Kind(metavar="URL")).help(
        "Send the file to a server, such as http://127.0.0.1:65530, instead of loading a model. Each line may name one "
        "of its models."
    )
    api_key: str | None = api_key_setting()
    completion_window: str = setting("24h", Kind(metavar="TIME")).help(
        "How long the batch may take on the server: a whole number with s, m, h or d."
    )


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
@settings_options(ServerOptions, title="Server")
@slots_option(8)
@settings_options(StateSettings, *_STATES)
@loading_options
@click.pass_context
def batch_command(
    context: click.Context,
    loading: LoadSettings,
    states: StateSettings,
    server: ServerOptions,
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
    if server.url is None:
        refuse_options(context, ["completion_window"], "without --url")
        model, file = model_and_file(words, "FILE")
    else:
        own = ("slots", *parameters_of(StateSettings, *_STATES), *parameters_of(LoadSettings, *LOADING))
        refuse_options(context, own, WITH_URL)
        if len(words) != 1:
            raise click.UsageError(f"{len(words)} arguments; with --url, expected FILE alone: its lines name the model")
        [file] = map(Path, words)
    from rnn_engine.cli.batch.local import local_batches
    from rnn_engine.cli.batch.remote import remote_batches
    from rnn_engine.cli.batch.running import Batches, BatchTask, end_batch, run_batch

    task = BatchTask.open(file, output, errors, server.url, resume=resume)
    backend: AbstractContextManager[Batches]
    if server.url is None:
        backend = local_batches(model, loading, states, slots, task.folder)
    else:
        backend = remote_batches(server)
    try:
        with backend as batches:
            reached = run_batch(batches, task)
    finally:
        task.forget_unless_begun()
    end_batch(task, reached)
