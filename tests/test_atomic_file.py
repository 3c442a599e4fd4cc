"""A file that is replaced is seen whole, whatever fails while it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnn_engine.atomic_file import TEMPORARY_SUFFIX, atomic_file
from tests.support.faulty_disk import Crash, Fault, FaultyDisk


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


OLD, NEW = b"old" * 5000, b"new" * 9000


def replace(path: Path) -> None:
    with atomic_file(path) as file:
        for start in range(0, len(NEW), 8000):
            file.write(NEW[start : start + 8000])


def try_to_replace(path: Path) -> bool:
    try:
        replace(path)
    except (OSError, Crash):
        return False
    return True


def count_operations(folder: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        disk = FaultyDisk(patch)
        replace(folder / "counted")
    return disk.operations


@pytest.mark.parametrize("fault", Fault)
def test_a_fault_at_any_operation_leaves_the_old_file_or_the_new_one(tmp_path: Path, fault: Fault) -> None:
    path = tmp_path / "out"
    operations = count_operations(tmp_path)
    assert operations > 8
    seen = set()
    for at in range(operations):
        path.write_bytes(OLD)
        with pytest.MonkeyPatch.context() as patch:
            FaultyDisk(patch, fault, at)
            succeeded = try_to_replace(path)
        content = path.read_bytes()
        assert content == NEW if succeeded else content in (OLD, NEW)
        seen.add(content)
        leftovers = list(tmp_path.glob(f"*{TEMPORARY_SUFFIX}"))
        assert leftovers == [] or fault not in (Fault.ERROR, Fault.FULL)
        for leftover in leftovers:
            leftover.unlink()
    assert OLD in seen
