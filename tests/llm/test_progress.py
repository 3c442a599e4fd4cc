"""Progress where there is no terminal for a bar: a few lines of the log."""

from __future__ import annotations

import logging

import pytest

from rnn_engine.llm.progress import progress_bar


def test_progress_without_a_terminal_is_logged_from_the_start_and_seldom(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("rnn_engine.llm.progress.time.monotonic", lambda: now)
    caplog.set_level(logging.INFO)
    with progress_bar("loading m") as report:
        assert caplog.messages == ["loading m"]
        for done in range(60):
            now += 0.25
            report("reading the weights" if done < 2 else "loading layers", done, 60)
    assert caplog.messages == [
        "loading m",
        "loading m: loading layers, 3 of 60",
        "loading m: loading layers, 23 of 60",
        "loading m: loading layers, 43 of 60",
    ]
