"""The command `rnn-engine`: a table of its subcommands, and errors as one line.

A subcommand's module declares its options, and imports only what these need: no numpy and no library of a device or a
server, so that help and wrong options are answered at once. What a subcommand runs is imported in its function.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from rnn_engine.errors import InvalidRequestError, RnnEngineError


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A subcommand: its module in `rnn_engine.cli`, and the first sentence of its help."""

    module: str
    help: str


SUBCOMMANDS: Mapping[str, Subcommand] = MappingProxyType(
    {
        "serve": Subcommand("serve", "Serve models over HTTP, as OpenAI's API has it."),
        "fleet": Subcommand("serve", "Serve models with several replicas, on Ray Serve."),
        "chat": Subcommand("chat", "Talk with a model."),
        "generate": Subcommand("generate", "Continue a text and print what follows."),
        "batch": Subcommand("batch", "Run the requests in FILE, and write their answers to OUT."),
        "devices": Subcommand("setup", "List the devices that can run a model."),
        "pull": Subcommand("setup", "Fetch a model from the Hugging Face Hub."),
        "models": Subcommand("models", "List the models on this computer, and the short names of others."),
        "inspect": Subcommand("models", "Show what a model file holds and on which devices it fits."),
        "convert": Subcommand("models", "Write a model in another file format."),
        "bench": Subcommand("bench", "Measure decode and prefill speed of a model on a device."),
        "tune-state": Subcommand("tune_state", "Tune a model's initial state with the examples in DATA."),
        "tune-lora": Subcommand("tune_state", "Train a LoRA with the examples in DATA."),
        "tune-kernels": Subcommand("bench", "Find the fastest kernels for a model's matrices on a device."),
        "key": Subcommand("setup", "Make an API key."),
    }
)
_SERVERS = ("serve", "fleet")
_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
_NO_THREAD = "can't start new thread"  # Python's own message


class Commands(click.Group):
    """The click group of all subcommands. It imports a subcommand's module only on use."""

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401
        """Run a command line. What the encoding of the console lacks is printed as "?", and read as U+FFFD."""
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")
        return super().main(*args, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(SUBCOMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the subcommands with their help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, subcommand.help) for name, subcommand in SUBCOMMANDS.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in SUBCOMMANDS:
            return None
        module = importlib.import_module(f"rnn_engine.cli.{SUBCOMMANDS[cmd_name].module}")
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand of a command line. From then on, a signal to stop ends a server with code 0.

        While the server runs, it handles such signals itself, and ends with code 0 too. Raises UsageError for an
        unknown subcommand; the message names one that is spelled alike.
        """
        name = args[0]
        if not name.startswith("-") and name not in SUBCOMMANDS:
            nearest = get_close_matches(name, SUBCOMMANDS, n=1)
            advice = f"did you mean {nearest[0]}?" if nearest else "`rnn-engine --help` lists the commands"
            raise click.UsageError(f"no command {name!r}; {advice}", ctx)
        if name in _SERVERS:
            from rnn_engine_server.core.process import end_at_signals

            ctx.with_resource(end_at_signals())
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401
        """Run a subcommand. Print an error as one line, and exit with code 2 for a wrong value, 1 for other errors."""
        if ctx.params["debug"]:
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except InvalidRequestError as error:
            raise click.UsageError(f"{error}{_alike(error)}") from error
        except BrokenPipeError:
            raise  # click ends quietly, since nobody reads the output any more
        except (RnnEngineError, OSError) as error:
            raise click.ClickException(f"{error}{_alike(error)}") from error
        except KeyboardInterrupt:
            sys.exit(_INTERRUPTED)
        except MemoryError as error:
            raise click.ClickException("this computer is out of memory") from error
        except ImportError as error:  # of a library that can't be mapped into memory, too
            raise click.ClickException(f"a Python module can't be loaded: {error}") from error
        except RuntimeError as error:
            if str(error) != _NO_THREAD:
                raise
            raise click.ClickException(f"this computer is out of threads or memory: {error}") from error


def _alike(error: BaseException | None) -> str:
    """Return the end of a message about a file that is missing: the name of one that is spelled alike, if any."""
    while error is not None and not isinstance(error, FileNotFoundError):
        error = error.__cause__
    if error is None or not isinstance(error.filename, str | Path):
        return ""
    path = Path(error.filename)
    with suppress(OSError):
        for nearest in get_close_matches(path.name, os.listdir(path.parent), n=1):
            return f"; did you mean {path.with_name(nearest)}?"
    return ""


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


@click.group(cls=Commands, context_settings=_CONTEXT)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="rnn-engine")
def main(debug: bool) -> None:
    """Run and serve RWKV language models on any GPU that WebGPU reaches."""
