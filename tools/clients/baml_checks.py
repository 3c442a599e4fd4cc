"""Checks of BAML against the server: a function with a text as its result, and its stream, of a generated client."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from tools.clients.questions import MODEL, Checks, answers_france

_SOURCE = """
generator python {
  output_type "python/pydantic"
  output_dir "../"
  version "VERSION"
  default_client_mode "sync"
}
client<llm> Served {
  provider "openai-generic"
  options {
    base_url "URL"
    api_key "-"
    model "MODEL"
    temperature 0
  }
}
function Ask(question: string) -> string {
  client Served
  prompt #"{{ _.role("user") }}{{ question }}"#
}
"""


def _client(url: str) -> Any:  # noqa: ANN401
    if "baml_client" not in sys.modules:
        folder = tempfile.mkdtemp()
        source = Path(folder, "baml_src", "main.baml")
        source.parent.mkdir()
        source.write_text(
            _SOURCE.replace("VERSION", metadata.version("baml-py")).replace("URL", url).replace("MODEL", MODEL)
        )
        subprocess.run(
            [Path(sys.executable).with_name("baml-cli"), "generate"], cwd=folder, check=True, stdout=sys.stderr
        )
        sys.path.insert(0, folder)
    return import_module("baml_client").b


def _ask(url: str, question: str, stream: bool) -> object:
    if stream:
        return _client(url).stream.Ask(question).get_final_response()
    return _client(url).Ask(question)


CHECKS: Checks = {
    "a function": answers_france(partial(_ask, stream=False)),
    "its stream": answers_france(partial(_ask, stream=True)),
}
