"""Examples of the documents run as printed, and the user guide names all that the package exports.

`tests/setup/test_wheel.py` runs the user guide's examples.
"""

from __future__ import annotations

import re
from pathlib import Path

import rnn_engine
from rnn_engine.demo import model_path
from tests.support.documents import python_blocks
from tests.support.processes import ROOT, run_program


def test_other_examples_run(tmp_path: Path) -> None:
    [embeddings] = python_blocks("docs/retrieval.md", "### Vectors from Python")
    assert run_program(embeddings, tmp_path) == "(2, 64)\n"
    [collection] = python_blocks("docs/retrieval.md", "### Collections from Python")
    assert run_program(collection, tmp_path).endswith("] yes_no\n")
    [first] = python_blocks("README.md", "## A first chat in 30 seconds")
    assert "Paris" in run_program(first.replace("path/to/model.pth", str(model_path())), tmp_path)


def test_the_user_guide_describes_every_name_of_the_package() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", (ROOT / "docs" / "user-guide.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"\w+", row)}
    assert set(rnn_engine.__all__) - named == set()
