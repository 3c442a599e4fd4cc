"""The lines of the log, the ids of requests, and the times in answers' headers."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator

import pytest

from rnn_engine.telemetry import Outcome, RequestReport, Timing
from rnn_engine_server.auth.keys import ApiKey
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from rnn_engine_server.telemetry.logs import LogSettings, RequestIdFilter, make_formatter
from rnn_engine_server.telemetry.records import RequestRecord, request_logged_as, timing_headers
from tests.support.fake_engine import FakeEngine
from tests.support.http import Serve

SECRET = "my card number is 1234"
TEXT = {"prompt": SECRET}


class Lines(logging.Handler):
    """A handler that keeps the log's lines as JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(RequestIdFilter())
        self.setFormatter(make_formatter("json"))
        self.all: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(json.loads(self.format(record)))

    @property
    def requests(self) -> list[dict[str, object]]:
        return [line for line in self.all if line["logger"] == "rnn_engine_server.telemetry.records"]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Yield the lines that are logged while a test runs."""
    handler, root = Lines(), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


def record_of(message: str, *args: object, error: Exception | None = None) -> logging.LogRecord:
    failure = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("server.test", logging.WARNING, __file__, 1, message, args, failure)
    record.created, record.msecs = 1_700_000_000.25, 250.0
    RequestIdFilter().filter(record)
    return record


def test_json_is_one_object_a_line() -> None:
    with request_logged_as("abc"):
        try:
            raise ValueError("first\nsecond")
        except ValueError as error:
            line = make_formatter("json").format(record_of("%s is\nwrong", "é", error=error))
    assert "\n" not in line
    fields = json.loads(line)
    assert fields["time"] == "2023-11-14T22:13:20.250Z"
    assert (fields["level"], fields["logger"], fields["message"]) == ("warning", "server.test", "é is\nwrong")
    assert fields["request_id"] == "abc"
    assert fields["exception"].endswith("ValueError: first\nsecond")


def test_text_has_the_request_at_its_end() -> None:
    with request_logged_as("abc"):
        line = make_formatter("text").format(record_of("all is %s", "well"))
    assert re.fullmatch(r"[\d: ,-]+ WARNING all is well request_id=abc", line)
    assert make_formatter("text").format(record_of("all is well")).endswith("WARNING all is well")


async def test_one_line_tells_of_a_request_and_nothing_of_its_text_or_key(serve: Serve, lines: Lines) -> None:
    auth = AuthSettings(keys=(ApiKey.of("the-key", "ann"),))
    client = await serve(FakeEngine(cached_tokens=3), ServerSettings(auth=auth))
    response = await client.post("/v1/completions", json=TEXT, headers={"Authorization": "Bearer the-key"})
    assert response.status == 200
    [line] = lines.requests
    assert line["request_id"] == response.headers["X-Request-Id"]
    assert (line["method"], line["route"], line["status"], line["key"]) == ("POST", "/v1/completions", 200, "ann")
    assert (line["tokens_in"], line["tokens_cached"], line["tokens_out"]) == (len(SECRET), 3, 13)
    assert line["queue_ms"] == 250.0
    assert isinstance(line["ttft_ms"], float)
    assert isinstance(line["total_ms"], float)
    assert "level" in line
    assert f"{line['message']}".startswith("POST /v1/completions 200 key=ann client=127.0.0.1 tokens_in=")
    everything = json.dumps(lines.all)
    assert SECRET not in everything
    assert "the-key" not in everything


@pytest.mark.parametrize("given", ["a", "x" * 128, "req_01!~", "0b3c-11"])
async def test_a_clients_own_id_is_taken(serve: Serve, given: str) -> None:
    client = await serve(FakeEngine())
    response = await client.post("/v1/completions", json=TEXT, headers={"X-Request-Id": given})
    assert response.headers["X-Request-Id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "é", "a\tb"])
async def test_another_is_made_where_the_clients_may_not_stand_in_a_log(serve: Serve, given: str) -> None:
    client = await serve(FakeEngine())
    response = await client.get("/v1/models", headers={"X-Request-Id": given})
    assert re.fullmatch(r"[0-9a-f]{32}", response.headers["X-Request-Id"])


async def test_errors_and_streams_have_ids_of_their_own(serve: Serve) -> None:
    client = await serve(FakeEngine())
    ids = []
    for body in ({"prompt": 5}, {**TEXT, "stream": True}, {**TEXT, "top_p": 9}):
        response = await client.post("/v1/completions", json=body)
        await response.read()
        ids.append(response.headers["X-Request-Id"])
    ids.append((await client.get("/nowhere")).headers["X-Request-Id"])
    assert len(set(ids)) == 4


async def test_lines_of_requests_that_run_together_are_told_apart(serve: Serve, lines: Lines) -> None:
    engine = FakeEngine(reply=lambda request: "x", fail_at=0)
    engine.reply = lambda request: 1 // 0  # type: ignore[assignment, return-value]
    client = await serve(engine)
    asked = [client.post("/v1/completions", json=TEXT, headers={"X-Request-Id": f"r{n}"}) for n in range(5)]
    await asyncio.gather(*asked)
    failures = [line["request_id"] for line in lines.all if line["message"] == "a request failed"]
    assert sorted(map(str, failures)) == [f"r{n}" for n in range(5)]


async def test_an_answer_that_is_cut_short_says_so(serve: Serve, lines: Lines) -> None:
    client = await serve(FakeEngine(fail_at=2))
    await (await client.post("/v1/completions", json={**TEXT, "stream": True})).read()
    [line] = lines.requests
    assert (line["status"], line["abort"]) == (200, "failed_step")


@pytest.mark.parametrize(("slow_seconds", "level"), [(None, "info"), (1e-9, "warning"), (1e9, "info")])
async def test_slow_requests_are_warnings(serve: Serve, lines: Lines, slow_seconds: float | None, level: str) -> None:
    client = await serve(FakeEngine(), ServerSettings(logs=LogSettings(slow_seconds=slow_seconds)))
    await client.post("/v1/completions", json=TEXT)
    [line] = lines.requests
    assert (line["level"], line.get("slow", False)) == (level, level == "warning")


async def test_requests_of_those_who_watch_are_for_debugging(serve: Serve, lines: Lines) -> None:
    client = await serve(FakeEngine())
    for path in ("/health", "/metrics", "/v1/models"):
        await client.get(path)
    assert [line["level"] for line in lines.requests] == ["debug", "debug", "info"]


async def test_a_whole_answer_tells_its_times(serve: Serve) -> None:
    client = await serve(FakeEngine(queue_seconds=0.25))
    whole = await client.post("/v1/completions", json=TEXT)
    assert whole.headers["X-Queue-Time"] == "250"
    assert all(re.fullmatch(r"-?\d+", whole.headers[name]) for name in ("X-Inference-Time", "X-Time-Per-Token"))
    streamed = await client.post("/v1/completions", json={**TEXT, "stream": True})
    await streamed.read()
    models = await client.get("/v1/models")
    for answer in (streamed, models):
        assert "X-Queue-Time" not in answer.headers


def test_without_times_of_the_engine_there_are_no_times_of_it() -> None:
    untimed = RequestReport(Outcome.STOP, 101.0, 112.0, None, 5, 1, 3)
    for reports in ([], [untimed]):
        record = RequestRecord("POST", "/v1/completions", begun=100.0, reports=reports)
        assert (record.queue_seconds, record.first_token_seconds, record.inference_seconds) == (None, None, None)
        assert timing_headers(record) == {}


def test_the_times_are_those_of_the_first_of_several_requests_to_the_engine() -> None:
    """The second request begins when the first has ended, and waits for less time."""
    first = RequestReport(Outcome.STOP, 101.0, 112.0, Timing(101.0, 107.0, 108.0), 5, 1, 3)
    second = RequestReport(Outcome.STOP, 112.0, 115.0, Timing(112.0, 112.5, 113.0), 5, 5, 7)
    record = RequestRecord("POST", "/v1/completions", begun=100.0, reports=[second, first])
    assert (record.queue_seconds, record.first_token_seconds, record.inference_seconds) == (6.0, 8.0, 8.0)
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (10, 6, 10)
    assert timing_headers(record) == {"X-Queue-Time": "6000", "X-Inference-Time": "8000", "X-Time-Per-Token": "800"}
