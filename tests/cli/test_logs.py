"""The server's log: whole lines in their order, and no waiting if no process reads them."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator

import pytest

from rnn_engine.cli.serving import BackgroundHandler, log_on_stderr
from rnn_engine_server.telemetry.logs import LogLevel, LogSettings
from rnn_engine_server.telemetry.records import request_logged_as


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


def logger_to(handler: logging.Handler) -> logging.Logger:
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger


def test_lines_come_in_their_order(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    handler = BackgroundHandler(writing)
    for number in range(100):
        logger_to(handler).info("line %d \ud800", number)
    handler.close()
    assert os.read(reading, 100_000).decode().splitlines() == [f"line {number} \\ud800" for number in range(100)]
    os.close(writing)


def test_nobody_waits_for_a_reader_and_what_was_dropped_is_told(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    handler = BackgroundHandler(writing, capacity=10)
    logger = logger_to(handler)
    sent = 0
    while handler.dropped < 5:
        logger.info("%d %s", sent, "x" * 5000)
        sent += 1
    read, numbers, dropped = b"", [0], 0
    while len(numbers) + dropped < sent:
        read += os.read(reading, 100_000)
        numbers = [int(line.split()[0]) for line in read.splitlines() if line.endswith(b"x" * 5000)]
        dropped = sum(map(int, re.findall(rb"(\d+) log lines were dropped, since standard error was not read\n", read)))
    assert numbers == list(range(len(numbers)))
    assert dropped >= 5
    handler.close()
    os.close(writing)


def test_a_reader_that_has_left_is_no_error(pipe: tuple[int, int]) -> None:
    _, writing = pipe
    handler = BackgroundHandler(writing)
    os.close(writing)
    logger_to(handler).info("a line")
    handler.close()


@pytest.mark.parametrize(("level", "number"), [("debug", 2), ("info", 1), ("error", 0)])
def test_what_the_settings_ask_for_is_written(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int], level: LogLevel, number: int
) -> None:
    reading, writing = pipe
    monkeypatch.setattr("rnn_engine.cli.serving._STANDARD_ERROR", writing)
    logger = logging.getLogger("test")
    with log_on_stderr(LogSettings("json", level)), request_logged_as("abc"):
        logger.info("a line")
        logger.debug("another")
    os.close(writing)
    lines = [json.loads(line) for line in os.read(reading, 100_000).splitlines()]
    told = [(line["message"], line["request_id"]) for line in lines if line["logger"] == "test"]
    assert told == [("a line", "abc"), ("another", "abc")][:number]
