"""`rnn-engine serve`: serve models over HTTP."""

from __future__ import annotations

import cloup

from rnn_engine.cli.options import LongCommand
from rnn_engine.cli.serve_options import ServeOptions, serving_options


@cloup.command(cls=LongCommand)
@serving_options
def serve_command(options: ServeOptions) -> None:
    """Serve models over HTTP, as OpenAI's API has it.

    MODEL is a .safetensors, .st, .prefab, .pth or .gguf file, a Hugging Face folder or the name of a model that was
    pulled, or NAME=FILE. Without MODEL, the model that comes with rnn-engine is served. Of several models, each
    answers the requests that name it. --state, --default-state and --lora are for the first; the others keep what
    they write in folders of their own names, within the folders that are given. Ctrl-C or SIGTERM ends the server
    when its running requests have ended; a second one does not wait. Sockets that systemd passes (LISTEN_FDS) are
    used in place of --unix-socket, and --unix-socket in place of --port.
    """
    from rnn_engine.cli.serving import serve
    from rnn_engine.cli.session import load_engine

    serve(load_engine, options)
