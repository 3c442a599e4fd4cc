"""Paths in requests may not lead out of their folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine_states.files.exchange import confined_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    (tmp_path / "inside-too").mkdir()
    for path in ("secret", "inside/a", "inside/sub/b", "inside-too/c"):
        (tmp_path / path).write_text(path)
    (inside / "link-out").symlink_to(tmp_path / "secret")
    (inside / "folder-out").symlink_to(tmp_path)
    (inside / "link-to-namesake").symlink_to(tmp_path / "inside-too" / "c")
    (inside / "link-in").symlink_to(inside / "a")
    (inside / "loop").symlink_to(inside / "loop")
    return inside


@pytest.mark.parametrize("requested", ["a", "sub/b", "./a", "link-in", "sub//b"])
def test_a_path_inside_is_found(folder: Path, requested: str) -> None:
    path = confined_path(folder, requested, "path")
    assert path.is_relative_to(folder.resolve())
    assert path.is_file()


@pytest.mark.parametrize("requested", ["inside/a", "inside/sub/b", "inside/link-in"])
def test_a_path_from_where_the_server_runs_is_found(
    folder: Path, requested: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert confined_path(folder, requested, "path") == (folder.parent / requested).resolve()


@pytest.mark.parametrize("requested", ["secret", "inside-too/c", "inside/link-out"])
def test_beside_the_folder_nothing_is_found(folder: Path, requested: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    with pytest.raises((InvalidRequestError, NotFoundError)):
        confined_path(folder, requested, "path")


@pytest.mark.parametrize(
    "requested",
    [
        "", "/etc/passwd", "../secret", "sub/../../secret", "sub/../a", "..", "..\\secret", "C:\\secret", "C:secret",
        "\\\\host\\share", "\\secret", "link-out", "folder-out/secret", "loop", "link-to-namesake",
        "../inside-too/c", "a\0",
    ],
)  # fmt: skip
def test_a_path_that_leaves_the_folder_is_refused(folder: Path, requested: str) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"path: .* expected a relative path inside the folder of state files"
    ):
        confined_path(folder, requested, "path")


@pytest.mark.parametrize("requested", ["absent", "sub", ".", "a/b"])
def test_a_path_that_is_no_file_is_not_found(folder: Path, requested: str) -> None:
    with pytest.raises(NotFoundError, match="path: no state file"):
        confined_path(folder, requested, "path")


@pytest.mark.parametrize(
    "name", ["6f9619ff-8b86-d011-b42d-00c04fc964ff.state", "6F9619FF" * 4 + ".STATE", "0a" * 20 + ".state"]
)
def test_what_the_server_keeps_there_is_not_found(folder: Path, name: str) -> None:
    for place in (folder, folder / "sub"):
        (place / name).write_text("kept")
    (folder / "link").symlink_to(folder / name)
    for requested in (name, f"sub/{name}", "link"):
        with pytest.raises(NotFoundError, match="path: no state file"):
            confined_path(folder, requested, "path")


def test_without_a_folder_no_path_is_allowed() -> None:
    with pytest.raises(InvalidRequestError, match="no folder of state files is configured"):
        confined_path(None, "poet.st", "path")
