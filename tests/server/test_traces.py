"""The spans of requests, kept in memory, and the settings of the environment."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pytest_aiohttp.plugin import AiohttpClient

from rnn_engine.errors import InvalidRequestError
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import ServerSettings
from rnn_engine_server.telemetry.traces import RequestTracer, make_tracer
from tests.support.fake_engine import FakeEngine
from tests.support.http import Client, Through

TEXT = {"prompt": "my card number is 1234"}
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Traced:
    """A server whose spans stay in memory."""

    def __init__(self, start: AiohttpClient, through: Through) -> None:
        self._start = start
        self._through = through
        self._exporter = InMemorySpanExporter()

    async def serve(self, engine: FakeEngine) -> Client:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        return await self._start(make_app(await self._through(engine), ServerSettings(), RequestTracer(provider)))

    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans() if span.name == name]


@pytest.fixture
def traced(aiohttp_client: AiohttpClient, through: Through) -> Traced:
    return Traced(aiohttp_client, through)


def attributes(span: ReadableSpan) -> Mapping[str, object]:
    return dict(span.attributes or {})


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_a_span_with_one_for_each_phase(traced: Traced, stream: bool) -> None:
    client = await traced.serve(FakeEngine(cached_tokens=2))
    response = await client.post("/v1/completions", json={**TEXT, "stream": stream})
    await response.read()
    [request] = traced.named("POST /v1/completions")
    phases = [span for span in traced.spans() if span is not request]
    assert [span.name for span in phases] == ["queued", "prefill", "decode"]
    assert request.context is not None
    for span in phases:
        assert span.parent is not None
        assert span.parent.span_id == request.context.span_id
    queued, prefill, decode = phases
    assert queued.end_time == prefill.start_time
    assert prefill.end_time == decode.start_time
    assert queued.start_time is not None
    assert queued.end_time is not None
    assert abs(queued.end_time - queued.start_time - 250_000_000) < 1_000_000
    assert attributes(prefill)["rnn_engine.tokens"] == len(TEXT["prompt"]) - 2
    assert attributes(request)["gen_ai.usage.output_tokens"] == attributes(decode)["rnn_engine.tokens"] == 13
    assert attributes(request)["http.response.status_code"] == 200
    assert attributes(request)["rnn_engine.request_id"] == response.headers["X-Request-Id"]
    assert TEXT["prompt"] not in "".join(span.to_json() for span in traced.spans())


async def test_the_clients_trace_goes_on(traced: Traced) -> None:
    client = await traced.serve(FakeEngine())
    await client.get("/v1/models", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    [span] = traced.spans()
    assert span.context is not None
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)


@pytest.mark.parametrize("parent", ["", "00-0-0-01", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "é" * 99])
async def test_a_parent_that_is_none_begins_a_trace(traced: Traced, parent: str) -> None:
    client = await traced.serve(FakeEngine())
    assert (await client.get("/v1/models", headers={"traceparent": parent})).status == 200
    [span] = traced.spans()
    assert span.parent is None


async def test_a_client_that_wants_no_trace_gets_none(traced: Traced) -> None:
    client = await traced.serve(FakeEngine())
    await client.post("/v1/completions", json=TEXT, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert traced.spans() == ()


async def test_requests_of_those_who_watch_are_not_traced(traced: Traced) -> None:
    client = await traced.serve(FakeEngine())
    for path in ("/health", "/metrics"):
        await client.get(path)
    assert traced.spans() == ()


def test_an_exporter_that_hangs_does_not_hold_up_the_end() -> None:
    taken = threading.Event()

    class Hanging(InMemorySpanExporter):
        def shutdown(self) -> None:
            taken.wait()

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(Hanging()))
    RequestTracer(provider, closing_seconds=0.01).close()
    assert not taken.is_set()
    taken.set()


async def test_failures_are_errors_and_what_a_client_did_wrong_is_not(traced: Traced) -> None:
    client = await traced.serve(FakeEngine(fail_at=1))
    await client.post("/v1/completions", json=TEXT)
    await client.post("/v1/completions", json={"prompt": 5})
    failed, wrong = traced.named("POST /v1/completions")
    assert (failed.status.is_ok, attributes(failed)["error.type"]) == (False, "failed_step")
    assert (wrong.status.is_ok, attributes(wrong)["http.response.status_code"]) == (True, 400)


async def test_the_phases_of_many_choices_are_bounded(traced: Traced) -> None:
    client = await traced.serve(FakeEngine(reply=lambda request: "x"))
    await client.post("/v1/completions", json={**TEXT, "n": 100})
    assert len(traced.named("decode")) == 64


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1"},
        {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_without_being_asked_for_there_are_no_traces(environment: dict[str, str]) -> None:
    assert make_tracer(environment) is None


def test_an_exporter_that_is_installed() -> None:
    tracer = make_tracer({"OTEL_TRACES_EXPORTER": "console"})
    assert tracer is not None
    tracer.close()


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"OTEL_TRACES_EXPORTER": "pigeon"}, "pigeon"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "otlp_proto_grpc",
        ),
    ],
)
def test_one_that_is_not(environment: dict[str, str], name: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"OTEL_TRACES_EXPORTER: '{name}' is not allowed; .*engine\[otel"):
        make_tracer(environment)


def test_where_the_extra_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("opentelemetry", "opentelemetry.sdk", "opentelemetry.sdk.resources"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidRequestError, match=r"'console' is not allowed; expected .*pip install .*otel"):
        make_tracer({"OTEL_TRACES_EXPORTER": "console"})


def test_nothing_of_it_is_imported_unless_asked_for() -> None:
    code = "import sys, rnn_engine_server.core.app\n"
    code += "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
