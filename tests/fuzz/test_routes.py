"""The OpenAPI document's description of every route, compared with a server over the demo model; damaged requests."""

from __future__ import annotations

import asyncio

import pytest

from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.core.settings import Limits, ServerSettings
from rnn_engine_server.openapi.document import plain_path
from tests.support.demo_server import demo_server
from tools.fuzz.routes import LEFT_OUT, fault_of, try_damaged, try_document

LIMITS = Limits(max_answer_tokens=256, max_request_seconds=20)


def test_every_route_keeps_to_the_document_and_damage_is_refused() -> None:
    with demo_server(ServerSettings(limits=LIMITS)) as url:
        breaches = try_document(url, examples=1, seed=0)
        faults = asyncio.run(try_damaged(url, breaches.requests, 100, seed=1))
    assert breaches.errors == []
    assert list(breaches.found.values()) == []
    assert faults == []
    tried = {label for label, _ in breaches.answers}
    assert tried == {f"{route.method} {plain_path(route.path)}" for route in ALL_ROUTES if route.path not in LEFT_OUT}
    answered = {label for label, status in breaches.answers if status == "2xx"}
    assert {"POST /v1/chat/completions", "POST /v1/messages", "POST /api/chat", "POST /generate_stream"} <= answered


@pytest.mark.parametrize(
    ("answer", "is_fault"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nanything", False),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n{}", False),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n{}", True),
        (b"HTTP/1.1 501 Not Implemented\r\n\r\n", False),
        (b"", False),
        (None, True),
    ],
)
def test_what_counts_as_a_fault(answer: bytes | None, is_fault: bool) -> None:
    assert (fault_of(answer) is not None) == is_fault
