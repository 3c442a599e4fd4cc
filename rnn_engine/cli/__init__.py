"""The command `rnn-engine`: imports the module of each subcommand when it is used, and prints errors as one line."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from rnn_engine.errors import InvalidRequestError, RnnEngineError

_MODULE_OF = {
    "serve": "serve",
    "fleet": "fleet",
    "chat": "chat",
    "generate": "generate",
    "devices": "setup",
    "pull": "setup",
    "models": "models",
    "inspect": "models",
    "convert": "models",
    "logits": "generate",
    "bench": "bench",
    "tune": "bench",
    "key": "setup",
}
_SERVERS = ("serve", "fleet")
_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
_NO_THREAD = "can't start new thread"  # Python's own message


class Commands(click.Group):
    """The click group of all subcommands. It imports a subcommand's module only on use, since some load slowly."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_MODULE_OF)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _MODULE_OF:
            return None
        module = importlib.import_module(f"rnn_engine.cli.{_MODULE_OF[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand of a command line. From then on, a signal to stop ends a server with code 0.

        While the server runs, it handles such signals itself, and ends with code 0 too.
        """
        if args[0] in _SERVERS:
            from server.core.process import end_at_signals

            ctx.with_resource(end_at_signals())
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401
        """Run a command; print an error as one line, and exit with code 2 for a wrong value, 1 for any other error."""
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
        except MemoryError as error:
            raise click.ClickException("this computer is out of memory") from error
        except ImportError as error:  # of a library that can't be mapped into memory, too
            raise click.ClickException(f"a Python module can't be loaded: {error}") from error
        except RuntimeError as error:
            if str(error) != _NO_THREAD:
                raise
            raise click.ClickException(f"this computer is out of threads or memory: {error}") from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="rnn-engine")
def main(debug: bool) -> None:
    """Run and serve RWKV language models on any GPU that WebGPU reaches."""
