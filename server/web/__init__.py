"""The web page: static files that the browser runs as they are, without a build step.

README.md tells how they are laid out and how a page is added.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent

CONTENT_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
"""By suffix, what a browser may ask for."""


@cache
def web_files() -> dict[str, Path]:
    """Return path below `/web/` -> file, for all that a browser may ask for."""
    found = (path for path in FOLDER.rglob("*") if path.suffix in CONTENT_TYPES)
    return {path.relative_to(FOLDER).as_posix(): path for path in found}
