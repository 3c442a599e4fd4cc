"""A reader sees a replaced file whole, whatever fails during writing."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from typing_extensions import Buffer

from rnn_engine import files
from rnn_engine.errors import InvalidRequestError
from rnn_engine.files import TEMPORARY_SUFFIX, append, atomic_file, atomic_folder, delete_unfinished
from tests.support.faulty_disk import Crash, Fault, FaultyDisk


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(TypeError, match="bytes-like"), atomic_file(path) as file:
        file.writelines([b"new", object()])  # type: ignore[list-item]
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert path.read_text() == "old"


class SmallDisk(io.FileIO):
    """A file on a disk that takes two bytes at a time, and none beyond some six."""

    def write(self, data: Buffer) -> int:
        if self.tell() >= 6:
            raise OSError("full")
        return super().write(memoryview(data)[:2])


@pytest.mark.parametrize("mode", ["w", "a"])
def test_what_is_appended_is_there_as_a_whole_or_not_at_all(tmp_path: Path, mode: str) -> None:
    with SmallDisk(tmp_path / "out", mode) as file:
        append(file, b"abc")
        with pytest.raises(OSError, match="full"):
            append(file, b"defghi")
        append(file, b"xyz")
    assert (tmp_path / "out").read_bytes() == b"abcxyz"


def test_what_crashes_have_left_of_a_file_is_deleted(tmp_path: Path) -> None:
    path, others = tmp_path / "a[1]", ["a[1]", "a[1].old", "a1.2.partial", "a[1]b.3.partial"]
    for name in (*others, "a[1].4.partial", "a[1].5.partial"):
        (tmp_path / name).touch()
    delete_unfinished(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(others)


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


def write_folder(path: Path, content: str) -> None:
    with atomic_folder(path, "output") as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text(content)


def test_a_folder_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write_folder(path, "old")
    with pytest.raises(FileNotFoundError), atomic_folder(path, "output") as folder:
        (folder / "missing" / "file").write_text("new")
    assert (path / "sub" / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_changes_meanwhile_is_left(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write_folder(path, "old")
    with pytest.raises(InvalidRequestError, match="it holds 'mine'"), atomic_folder(path, "output"):
        (path / "mine").mkdir()
    assert (path / "mine").is_dir()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems can't exchange two folders")
def test_a_folder_is_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    write_folder(path, "old")
    monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("there was nothing at the path"))
    write_folder(path, "new")
    assert (path / "sub" / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace folders as on a system that can't exchange them."""
    monkeypatch.setattr(files, "_exchange", lambda *_: False)


@pytest.mark.usefixtures("two_steps")
def test_a_folder_is_replaced_in_two_steps(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write_folder(path, "old")
    write_folder(path, "new")
    assert (path / "sub" / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("two_steps")
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()], ids=["error", "signal"])
def test_a_folder_that_can_not_be_put_in_place_brings_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "out"
    write_folder(path, "old")
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name.endswith(TEMPORARY_SUFFIX):
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(type(error)):
        write_folder(path, "new")
    assert (path / "sub" / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("two_steps")
def test_a_crash_between_the_steps_leaves_the_old_folder_beside_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    write_folder(path, "old")
    rename = Path.rename

    def crash(self: Path, target: Path) -> Path:
        if self != path:
            raise Crash  # from then on nothing is renamed any more
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", crash)
    with pytest.raises(Crash):
        write_folder(path, "new")
    [old] = tmp_path.glob("out.*.old")
    assert (old / "sub" / "file").read_text() == "old"


@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_a_folder_takes_no_files_and_no_links_place(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "out"
    write_folder(tmp_path / "other", "old")
    path.write_text("mine") if kind == "file" else path.symlink_to(tmp_path / ("other" if kind == "link" else "none"))
    before = path.lstat()
    with pytest.raises(InvalidRequestError, match=r"output: .* it is a (file|link)"):
        write_folder(path, "new")
    assert path.lstat() == before
    assert (tmp_path / "other" / "sub" / "file").read_text() == "old"
