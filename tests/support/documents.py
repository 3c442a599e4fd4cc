"""The examples in the project's documents."""

from __future__ import annotations

import re

from tests.support.processes import ROOT


def python_blocks(page: str, heading: str) -> list[str]:
    """Return the blocks of Python below a heading of a page of the documents."""
    section = (ROOT / page).read_text().partition(f"\n{heading}\n")[2]
    return re.findall(r"^```python\n(.*?)^```", re.split(r"^#{1,3} ", section, flags=re.MULTILINE)[0], re.M | re.S)
