"""Examples of the documents run as printed, and the reference is up to date with the code.

`tests/setup/test_wheel.py` runs the user guide's examples.
"""

from __future__ import annotations

from pathlib import Path

from rnn_engine.demo import model_path
from tests.support.documents import python_blocks
from tests.support.processes import run_program
from tools.python_api import DOCUMENT, document


def test_other_examples_run(tmp_path: Path) -> None:
    [embeddings] = python_blocks("docs/embeddings.md", "## From Python")
    assert run_program(embeddings, tmp_path) == "(2, 64)\n"
    [collection] = python_blocks("docs/retrieval.md", "### From Python")
    assert run_program(collection, tmp_path).endswith("] yes_no\n")
    [first] = python_blocks("README.md", "## A first chat in 30 seconds")
    assert "Paris" in run_program(first.replace("path/to/model.pth", str(model_path())), tmp_path)


def test_the_reference_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == document(), "run: python -m tools.python_api"
