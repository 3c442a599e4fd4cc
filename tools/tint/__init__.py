"""Compile every shader with Tint, a second WGSL compiler, which is part of npm's package `webgpu`.

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
    """Return Tint's error messages for `shaders`, name -> WGSL, by the names of those that it rejects."""
    done = subprocess.run(
        ["node", "compile.mjs"], cwd=FOLDER, input=json.dumps(shaders), capture_output=True, text=True, check=True
    )
    refused: dict[str, list[str]] = json.loads(done.stdout)
    return refused
