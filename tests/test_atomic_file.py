"""A file that is replaced is seen whole, and a write that fails leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnn_engine.atomic_file import TEMPORARY_SUFFIX, atomic_file


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(TypeError, match="bytes-like"), atomic_file(path) as file:
        file.writelines([b"new", object()])  # type: ignore[list-item]
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert path.read_text() == "old"


def test_the_old_file_stays_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with atomic_file(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
        (unfinished,) = tmp_path.glob(f"out.*{TEMPORARY_SUFFIX}")
    assert path.read_text() == "new"
    assert not unfinished.exists()


def test_a_folder_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"), atomic_file(tmp_path / "missing" / "out"):
        pytest.fail("the block was entered")
