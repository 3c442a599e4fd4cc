"""`rnn-engine tune-kernels` with a made-up search: its results are shown, kept and deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnn_engine.forward.tuner import Choice, Chosen
from rnn_engine.forward.tuning import MatMulClass
from rnn_engine.forward.variants import StreamVariant
from tests.support.cli import Command

FOUND = Choice(MatMulClass("f16", 64, 32), 1, StreamVariant(tokens=1, panels=2), 2e-6, StreamVariant(tokens=1), 5e-6)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("rnn_engine.files.sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rnn-engine" / "kernels"


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    calls: list[dict[str, object]] = []

    def search(_tuner: object, seconds: float, _report: object, **named: object) -> Chosen:
        calls.append({"seconds": seconds, **named})
        return {(FOUND.kind, FOUND.tokens): FOUND}

    monkeypatch.setattr("rnn_engine.loading.kernel_choices.KernelTuner.search", search)
    return calls


def test_what_is_found_is_shown_and_kept_until_it_is_forgotten(
    rnn_engine: Command, model_file: Path, folder: Path, searched: list[dict[str, object]]
) -> None:
    table = rnn_engine("tune-kernels", model_file, "--seconds", 3)
    assert searched == [{"seconds": 3.0, "known": set(), "exhaustive": False}]
    for part in ("f16 64x32", str(FOUND.variant), str(FOUND.default), "2.50"):
        assert part in table
    (path,) = folder.iterdir()
    shown = rnn_engine("tune-kernels", "--show")
    assert str(path) in shown
    assert table in shown
    assert rnn_engine("tune-kernels", "--forget") == ""
    assert list(folder.iterdir()) == []
    assert rnn_engine("tune-kernels", "--show") == ""


def test_a_search_of_everything_searches_again_for_what_is_kept(
    rnn_engine: Command, model_file: Path, searched: list[dict[str, object]]
) -> None:
    rnn_engine("tune-kernels", model_file)
    rnn_engine("tune-kernels", model_file, "--exhaustive")
    assert [call["exhaustive"] for call in searched] == [False, True]
    assert [call["known"] for call in searched] == [set(), set()]


def test_a_damaged_record_is_named(rnn_engine: Command, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("{")
    assert "a.json: damaged" in rnn_engine("tune-kernels", "--show")


def test_numpy_has_no_kernels(rnn_engine: Command, model_file: Path) -> None:
    said = rnn_engine("tune-kernels", model_file, "--device", "cpu", code=1)
    assert said == "Error: the device 'cpu' has no kernels to choose from; choose another --device\n"


@pytest.mark.parametrize("value", ["fast", "-1", "nan"])
def test_the_time_of_a_search_is_checked(rnn_engine: Command, model_file: Path, value: str) -> None:
    said = rnn_engine("bench", model_file, "--tune", value, code=2)
    assert f"{value!r}; expected auto, or a number of seconds of at least 0" in said
