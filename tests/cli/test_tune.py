"""`rnn-engine tune-kernels` with a made-up search: its results are shown and kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rnn_engine.forward.tuner import Choice, Chosen
from rnn_engine.forward.tuning import MatMulClass
from rnn_engine.forward.variants import StreamVariant
from rnn_engine.loading.kernel_choices import read_choices
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


def test_what_is_found_is_shown_and_kept(
    rnn_engine: Command, model_file: Path, folder: Path, searched: list[dict[str, object]]
) -> None:
    table = rnn_engine("tune-kernels", model_file, "--seconds", 3)
    for part in ("f16 64x32", str(FOUND.variant), str(FOUND.default), "2.50"):
        assert part in table
    (path,) = folder.iterdir()
    assert read_choices(json.loads(path.read_text())) == [FOUND]
    rnn_engine("tune-kernels", model_file, "--seconds", 3)
    assert searched == 2 * [{"seconds": 3.0, "known": set()}]  # what is kept is searched again


def test_numpy_has_no_kernels(rnn_engine: Command, model_file: Path) -> None:
    said = rnn_engine("tune-kernels", model_file, "--device", "cpu", code=1)
    assert said == "Error: the device 'cpu' has no kernels to choose from; choose another --device\n"


@pytest.mark.parametrize("value", ["fast", "-1", "nan"])
def test_the_time_of_a_search_is_checked(rnn_engine: Command, model_file: Path, value: str) -> None:
    said = rnn_engine("bench", model_file, "--tune", value, code=2)
    assert f"{value!r}; expected auto, or a number of seconds of at least 0" in said
