"""The types of the web page's modules, if node is installed, and the lists of its files and libraries."""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path

import pytest

from rnn_engine_server.web import FOLDER, web_files
from tools.web import TSC, VENDOR, check_types, digest, read_list

MOST_SENT_BYTES = 250_000  # of all files, compressed as they are sent
MOST_LINES = 200


@pytest.mark.skipif(
    shutil.which("node") is None or not TSC.exists(), reason="needs node, and `npm ci --ignore-scripts` in tools/web"
)
def test_the_types_are_right() -> None:
    assert check_types() == ""


def test_every_library_is_listed_and_is_what_was_fetched() -> None:
    listed = {library.file: library.sha256 for library in read_list()}
    assert {
        path.name: digest(path.read_bytes()) for path in VENDOR.iterdir() if path.suffix in (".js", ".css")
    } == listed
    licences = (VENDOR / "LICENSES.txt").read_text()
    assert [library.package for library in read_list() if f"==== {library.package}\n" not in licences] == []


def test_what_the_frame_imports_is_preloaded() -> None:
    """The browser then fetches all modules at once, instead of finding one after another by their imports."""
    preloads = re.findall(r'rel="modulepreload" href="web/(.*?)"', (FOLDER / "index.html").read_text())
    assert sorted(preloads) == sorted(imports_of(FOLDER / "main.js") - {"main.js"})


def imports_of(module: Path, found: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the modules that a module imports at its loading, directly or indirectly, and itself."""
    found |= {module.relative_to(FOLDER).as_posix()}
    for name in re.findall(r'^(?:import|export) [^;]*?from "(.+?)";', module.read_text(), flags=re.MULTILINE):
        target = (module.parent / name).resolve()
        if target.relative_to(FOLDER).as_posix() not in found:
            found = imports_of(target, found)
    return found


def test_all_files_together_are_small() -> None:
    assert sum(len(gzip.compress(path.read_bytes())) for path in web_files().values()) < MOST_SENT_BYTES


def test_a_module_holds_one_idea() -> None:
    own = [path for path in FOLDER.rglob("*.js") if path.parent.name not in ("vendor", "strings")]
    assert [path.name for path in own if len(path.read_text().splitlines()) > MOST_LINES] == []
