"""The fingerprint of a large file is computed once, and again after the file has changed."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from rnn_engine.files import cache_folder
from rnn_engine.model import fingerprint as known_fingerprints
from rnn_engine.model.fingerprint import recall
from rnn_engine.tensor_files.source import BinaryFile


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache's folder. Every file counts as large and as unchanged for long."""
    monkeypatch.setattr("rnn_engine.files.sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(known_fingerprints, "RECORDED_BYTES", 0)
    monkeypatch.setattr(known_fingerprints, "_SETTLED_NANOSECONDS", -(10**18))
    return cache_folder()


class Computer:
    """A computer of fingerprints that returns another name at each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        return f"fingerprint {self.calls}"


@pytest.fixture
def compute() -> Computer:
    return Computer()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.write_bytes(b"weights")
    return path


def ask(path: Path, compute: Computer) -> str:
    file = BinaryFile(path)
    file.close()
    return recall(path, file.stamp, compute)


def test_the_same_file_is_computed_once(path: Path, compute: Computer) -> None:
    assert [ask(path, compute) for _ in range(3)] == ["fingerprint 1"] * 3


def test_a_file_that_was_written_to_is_computed_again(path: Path, compute: Computer) -> None:
    ask(path, compute)
    os.utime(path, (1e9, 1e9))
    assert ask(path, compute) == "fingerprint 2"
    assert ask(path, compute) == "fingerprint 2"


def test_a_file_that_took_the_place_of_another_is_computed_again(path: Path, compute: Computer) -> None:
    ask(path, compute)
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(path.stat().st_mtime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    assert ask(path, compute) == "fingerprint 2"


def test_two_files_have_records_of_their_own(path: Path, compute: Computer) -> None:
    other = path.with_name("other")
    other.write_bytes(b"weights")
    assert [ask(one, compute) for one in (path, other, path, other)] == ["fingerprint 1", "fingerprint 2"] * 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"fingerprint": 3}', b"\xff"])
def test_a_damaged_record_is_replaced(content: bytes, path: Path, folder: Path, compute: Computer) -> None:
    ask(path, compute)
    (record,) = folder.glob("fingerprints/*")
    record.write_bytes(content)
    assert ask(path, compute) == "fingerprint 2"
    assert ask(path, compute) == "fingerprint 2"


def test_a_record_with_a_flipped_bit_is_not_believed(path: Path, folder: Path, compute: Computer) -> None:
    ask(path, compute)
    (record,) = folder.glob("fingerprints/*")
    sound = record.read_bytes()
    for position in range(0, len(sound), 7):
        damaged = bytearray(sound)
        damaged[position] ^= 1 << position % 8
        record.write_bytes(damaged)
        before = compute.calls
        assert ask(path, compute) == f"fingerprint {before + 1}"


def test_a_folder_that_can_not_be_made_is_a_warning(
    path: Path, folder: Path, compute: Computer, caplog: pytest.LogCaptureFixture
) -> None:
    folder.parent.write_bytes(b"a file is in the way")
    with caplog.at_level(logging.WARNING):
        assert ask(path, compute) == "fingerprint 1"
    assert "the next load computes it again" in caplog.text


def test_a_file_that_changed_just_now_leaves_no_record(
    path: Path, folder: Path, compute: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_fingerprints, "_SETTLED_NANOSECONDS", 10**18)
    assert ask(path, compute) == "fingerprint 1"
    assert not folder.exists()


def test_a_small_file_leaves_no_record(
    path: Path, folder: Path, compute: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_fingerprints, "RECORDED_BYTES", 8)
    assert ask(path, compute) == "fingerprint 1"
    assert not folder.exists()
