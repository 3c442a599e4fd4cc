"""Readers read damaged files or raise one of the project's errors, in little memory (`tools.fuzz.files`)."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tools.fuzz.files import KINDS, Kind, try_case
from tools.fuzz.mutations import mutate_bytes, mutate_file, mutate_value

CASES = 40


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_damaged_file_is_read_or_refused(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "file"
    kind.write(path)
    kind.read(path)
    sound = path.read_bytes()
    tracemalloc.start()
    try:
        outcomes = [try_case(kind, sound, path, f"test {number}") for number in range(CASES)]
    finally:
        tracemalloc.stop()
    assert [outcome.fault for outcome in outcomes if outcome.fault] == []
    assert Counter(outcome.ending for outcome in outcomes).total() == CASES


def test_a_fault_is_told_with_its_case(tmp_path: Path) -> None:
    def read(path: Path) -> None:
        raise ZeroDivisionError("a fault of our own")

    kind = Kind("broken", lambda path: path.write_bytes(b"{}"), read)
    tracemalloc.start()
    try:
        outcome = try_case(kind, b"{}", tmp_path / "file", "0 1")
    finally:
        tracemalloc.stop()
    assert outcome.fault == "broken, case 0 1: ZeroDivisionError: a fault of our own"


def test_damage_depends_on_the_seed_alone(tmp_path: Path) -> None:
    value = {"a": [1, "text", {"b": None}], "c": 2}
    for number_of_kind, kind in enumerate(KINDS):
        path = tmp_path / str(number_of_kind) / "file"
        path.parent.mkdir()
        kind.write(path)
        sound = path.read_bytes()
        first, again, other = (
            [mutate_file(sound, Random(f"{seed} {number}")) for number in range(20)] for seed in (0, 0, 1)
        )
        assert first == again
        assert first != other
    assert repr(mutate_value(value, Random(3))) == repr(mutate_value(value, Random(3)))
    assert mutate_bytes(b"data", Random(3)) == mutate_bytes(b"data", Random(3))
