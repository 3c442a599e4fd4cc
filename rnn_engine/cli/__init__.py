"""The command `rnn-engine`: finds its commands, one a module, and shows an error as one line."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from rnn_engine.errors import InvalidRequestError, RnnEngineError

_COMMANDS = (
    "serve",
    "fleet",
    "chat",
    "generate",
    "devices",
    "pull",
    "models",
    "inspect",
    "convert",
    "logits",
    "bench",
    "tune",
    "key",
)
_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class Commands(click.Group):
    """The group of commands. Imports a command's module when it is asked for, since some take a while to load."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"rnn_engine.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401
        """Run a command. Prints an error as one line and exits with 2 for a wrong value and with 1 for any other."""
        if ctx.params["debug"]:
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except InvalidRequestError as error:
            raise click.UsageError(str(error)) from error
        except (RnnEngineError, OSError) as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            sys.exit(_INTERRUPTED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, help="Show where in the code an error came from.")
@click.version_option(package_name="rnn-engine")
def main(debug: bool) -> None:
    """Run and serve RWKV language models on any GPU that WebGPU reaches."""
