"""Checks of npm packages against the server: Vercel's AI SDK and official clients.

The folder `node` has their scripts.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.clients.questions import Row

FOLDER = Path(__file__).parent / "node"

SCRIPTS: Mapping[str, str] = {
    "ai": "ai.mjs",
    "npm openai": "openai.mjs",
    "npm @anthropic-ai/sdk": "anthropic.mjs",
    "npm ollama": "ollama.mjs",
}
"""Package -> the script with its checks."""


def version(package: str) -> str | None:
    """Return the installed version of an npm package, or None if it is not installed."""
    path = FOLDER / "node_modules" / package.removeprefix("npm ") / "package.json"
    return str(json.loads(path.read_text())["version"]) if path.exists() else None


def rows(package: str, url: str) -> Iterator[Row]:
    """Run the checks of a package against the API at `url`. Raises CalledProcessError if they can't be run."""
    found = subprocess.run(["node", SCRIPTS[package], url], cwd=FOLDER, check=True, capture_output=True, text=True)
    for line in found.stdout.splitlines():
        yield Row(**json.loads(line))
