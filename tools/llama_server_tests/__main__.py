"""`python -m tools.llama_server_tests`: run llama-server's own tests against this server, and print a table of files.

The tests are downloaded from PyPI, as part of llama-cpp-python's source, and kept in a folder. They need `filelock`,
`openai` and `requests`. Each test starts the server that it needs, with a tiny random model on the device `cpu`. All
tests take minutes. The texts are not compared with those of llama.cpp's stories model. Arguments after `--` go to
pytest, such as `-k stream` or `-x`. Exits with 1 if a test fails.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import click
import pytest

from rnn_engine.demo import tokenizer_path
from tests.support.models import random_model, save_safetensors, tiny_shape
from tools.live_server.process import ROOT
from tools.llama_server_tests.plugin import Plugin
from tools.package_source import cache_folder, fetch_source

VERSION = "0.3.36"
"""The version of llama-cpp-python whose tests the tables of this tool are about."""

_PACKAGE = "llama-cpp-python"
_FOLDER = cache_folder(_PACKAGE, VERSION)
_PARTS = ("tools/server/tests/", "models/templates/")  # of llama.cpp
_VOCAB_SIZE = 2048  # room for the demo model's tokenizer
_END = 0  # the token that ends a text


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=cache_folder(_PACKAGE, VERSION),
    help="Where the tests are kept.",
)
@click.option("--file", "files", multiple=True, help="Only this file, as test_basic.py. May be given several times.")
@click.argument("pytest_options", nargs=-1)
def main(folder: Path, files: tuple[str, ...], pytest_options: tuple[str, ...]) -> None:
    """PYTEST_OPTIONS go to pytest."""
    fetch_source(_PACKAGE, VERSION, "vendor/llama.cpp/", _PARTS, folder)
    tests = folder / _PARTS[0]
    with tempfile.TemporaryDirectory() as models:
        write_model(Path(models))
        plugin = Plugin(tests, Path(models))
        os.environ["PYTHONPATH"] = str(ROOT)
        plugin.patch()
        os.chdir(tests)
        chosen = [f"unit/{name}" for name in files] or ["unit"]
        pytest.main(["-p", "no:cacheprovider", "-q", "--no-header", *chosen, *pytest_options], [plugin])
    click.echo("\n".join(table(plugin.outcomes)))
    sys.exit(any(outcome == "fails" for outcome, _ in plugin.outcomes.values()))


def write_model(folder: Path) -> Path:
    """Write a tiny random model that never generates an end token, with the demo model's tokenizer.

    Return the model's path.
    """
    model = random_model(tiny_shape(vocab=_VOCAB_SIZE), seed=1)
    model.tensors["ln_out.weight"][0] = 0.0  # so that channel 0 is the same after every token
    model.tensors["ln_out.bias"][0] = 8.0
    model.tensors["head.weight"][:, 0] = 0.0
    model.tensors["head.weight"][_END, 0] = -16.0
    (folder / tokenizer_path().name).write_bytes(tokenizer_path().read_bytes())
    return save_safetensors(model, folder / "tiny.safetensors")


def table(outcomes: Mapping[str, tuple[str, str]]) -> Iterable[str]:
    """Yield the lines of the report: a table with a row for each test file, then a list of the failing tests."""
    yield "| file | passes | does not apply | fails | what does not apply |"
    yield "|---|---|---|---|---|"
    totals: Counter[str] = Counter()
    for file in sorted({name.partition("::")[0] for name in outcomes}):
        of_file = [outcome for name, outcome in outcomes.items() if name.startswith(f"{file}::")]
        counts = Counter(kind for kind, _ in of_file)
        reasons = Counter(reason for kind, reason in of_file if kind == "does not apply")
        shown = "; ".join(f"{reason} ({count})" if count > 1 else reason for reason, count in sorted(reasons.items()))
        yield f"| {file} | {counts['passes']} | {counts['does not apply']} | {counts['fails']} | {shown} |"
        totals += counts
    yield f"| all | {totals['passes']} | {totals['does not apply']} | {totals['fails']} | |"
    failing = [f"* `{name}`: {reason}" for name, (kind, reason) in outcomes.items() if kind == "fails"]
    yield from (["", "Fails:", "", *failing] if failing else [])


if __name__ == "__main__":
    main()
