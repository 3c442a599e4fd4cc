"""Download selected source files of a package from PyPI into the user's cache folder."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


def cache_folder(package: str, version: str) -> Path:
    """Return the default folder for the source files of this version of a package."""
    return Path.home() / ".cache" / "rnn-engine" / f"{package}-{version}"


def fetch_source(package: str, version: str, inside: str, parts: tuple[str, ...], folder: Path) -> None:
    """Download a package's source archive, and extract some of its files to `folder`.

    The files are those below the source's folder `inside` with a path that begins with one of `parts`. Does nothing if
    `folder` already has the first of `parts`. Raises subprocess.CalledProcessError if pip can't download the source.
    """
    if (folder / parts[0]).is_dir():
        return
    with tempfile.TemporaryDirectory() as downloaded:
        command = [sys.executable, "-m", "pip", "download", f"{package}=={version}"]
        options = ["--no-deps", "--no-binary", package, "--dest", downloaded]
        subprocess.run([*command, *options], check=True, stdout=sys.stderr)
        [archive] = Path(downloaded).glob("*.tar.gz")
        prefix = f"{archive.name.removesuffix('.tar.gz')}/{inside}"
        with tarfile.open(archive) as source:
            for member in source:
                name = member.name.removeprefix(prefix)
                if name != member.name and name.startswith(parts):
                    member.name = name
                    source.extract(member, folder, filter="data")
