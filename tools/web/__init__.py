"""The web page's vendored JavaScript libraries, each a file of an npm package, and a type check of the page's modules.

`vendored.json` beside them lists the libraries: file, package, version, path in the package, licence, a text that
is appended to make it an ES module, and SHA-256. `python -m tools.web` downloads all of them again.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from rnn_engine_server.web import FOLDER

VENDOR = FOLDER / "vendor"
LIST = VENDOR / "vendored.json"

TSC = Path(__file__).parent / "node_modules" / ".bin" / "tsc"
"""Exists after `npm ci` was run in this folder."""

_REGISTRY = "https://registry.npmjs.org"


@dataclass(frozen=True, slots=True)
class Vendored:
    """A file of an npm package that is stored in the repository, with its package, version, licence and SHA-256."""

    file: str
    package: str
    version: str
    path: str
    licence: str
    append: str
    sha256: str

    def fetch(self) -> bytes:
        """Download the npm package, and return the bytes of its file as the repository stores them."""
        with urlopen(f"{_REGISTRY}/{self.package}/-/{self.package}-{self.version}.tgz") as answer:
            packed = io.BytesIO(answer.read())
        with tarfile.open(fileobj=packed, mode="r:gz") as archive:
            member = archive.extractfile(f"package/{self.path}")
            assert member is not None, self.path
            text = member.read().decode()
        without_map = re.sub(r"\n?//# sourceMappingURL=\S+\s*$", "", text)
        return f"{without_map.rstrip()}\n{self.append}".encode()


def read_list() -> list[Vendored]:
    """Return the libraries of the web page that the repository holds copies of, as its JSON list describes them."""
    return [Vendored(**entry) for entry in json.loads(LIST.read_text("utf-8"))]


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def check_types() -> str:
    """Return the errors that TypeScript's compiler finds in the page's modules. Needs node and `TSC`."""
    done = subprocess.run(
        [TSC, "--project", "."], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr
