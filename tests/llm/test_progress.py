"""Progress where there is no terminal for a bar: a few lines of the log."""

from __future__ import annotations

import logging
import threading

import pytest

from rnn_engine.llm.progress import progress_bar


def test_progress_without_a_terminal_is_logged_from_the_start_and_then_from_time_to_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rnn_engine.llm.progress._LOG_SECONDS", 0.001)
    caplog.set_level(logging.INFO)
    threads, logged = threading.active_count(), threading.Semaphore(0)
    monkeypatch.setattr(caplog.handler, "flush", logged.release)
    with progress_bar("loading m") as report:
        assert caplog.messages == ["loading m"]
        for done in range(2):
            report("loading layers", done, 2)
            before = len(caplog.messages)
            while f"loading m: loading layers, {done} of 2" not in caplog.messages[before:]:
                logged.acquire(timeout=10)
    assert threading.active_count() == threads
