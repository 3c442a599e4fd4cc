"""Compiles every shader with a second compiler of WGSL, Tint, which comes with npm's `webgpu`.

What one compiler lets pass, a driver behind another may refuse.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent

INSTALLED = FOLDER / "node_modules" / "webgpu"
"""Exists after `npm ci` was run in `FOLDER`."""


def refused_by_tint(shaders: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the messages for each of `shaders`, name -> text, that Tint refuses. Needs node and `INSTALLED`."""
    done = subprocess.run(
        ["node", "compile.mjs"], cwd=FOLDER, input=json.dumps(shaders), capture_output=True, text=True, check=True
    )
    refused: dict[str, list[str]] = json.loads(done.stdout)
    return refused
