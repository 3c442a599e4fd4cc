"""The user guide's examples run as printed, and the reference is up to date with the code."""

from __future__ import annotations

import re
from pathlib import Path

from rnn_engine.demo import model_path
from tests.support.processes import ROOT, run_program
from tools.python_api import DOCUMENT, document


def python_blocks(page: str, heading: str) -> list[str]:
    """Return the blocks of Python below a heading of a page of the documents."""
    section = (ROOT / page).read_text().partition(f"\n{heading}\n")[2]
    return re.findall(r"^```python\n(.*?)^```", re.split(r"^#{1,3} ", section, flags=re.MULTILINE)[0], re.M | re.S)


def test_the_guides_examples_run_as_one_program(tmp_path: Path) -> None:
    blocks = python_blocks("docs/user-guide.md", "### Use it from Python")
    assert len(blocks) == 13
    printed = run_program("\n".join(blocks), tmp_path)
    assert "The capital of France is Paris." in printed
    assert "get_weather" in printed
    assert (tmp_path / "brief.state").is_file()


def test_other_examples_run(tmp_path: Path) -> None:
    [embeddings] = python_blocks("docs/embeddings.md", "## From Python")
    assert run_program(embeddings, tmp_path) == "(2, 64)\n"
    [first] = python_blocks("README.md", "## A first chat in 30 seconds")
    assert "Paris" in run_program(first.replace("path/to/model.pth", str(model_path())), tmp_path)


def test_the_reference_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == document(), "run: python -m tools.python_api"
