"""The AI SDK of Vercel on node: its checks, which lie in `ai_sdk`, as rows of the table."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tools.clients.questions import Row

FOLDER = Path(__file__).parent / "ai_sdk"


def version() -> str | None:
    """Return the version of the package; None where it is not installed."""
    path = FOLDER / "node_modules" / "ai" / "package.json"
    return str(json.loads(path.read_text())["version"]) if path.exists() else None


def rows(url: str) -> Iterator[Row]:
    """Run all checks against the API at `url`. Raises CalledProcessError where they can't be run."""
    found = subprocess.run(["node", "checks.mjs", url], cwd=FOLDER, check=True, capture_output=True, text=True)
    for line in found.stdout.splitlines():
        yield Row(**json.loads(line))
