"""The OpenAPI document's description of every route, compared with a server over the demo model."""

from __future__ import annotations

from rnn_engine_server.core.settings import Limits, ServerSettings
from rnn_engine_server.openapi.document import plain_path
from tests.support.demo_server import demo_server
from tools.fuzz.cases import TRIED_ROUTES
from tools.fuzz.document import try_document

LIMITS = Limits(max_answer_tokens=256, max_request_seconds=20)


def test_every_route_keeps_to_the_document() -> None:
    with demo_server(ServerSettings(limits=LIMITS)) as url:
        breaches = try_document(url, examples=1, seed=0)
    assert breaches.errors == []
    assert list(breaches.found.values()) == []
    tried = {label for label, _ in breaches.answers}
    assert tried == {f"{route.method} {plain_path(route.path)}" for route in TRIED_ROUTES}
    answered = {label for label, status in breaches.answers if status == "2xx"}
    assert {"POST /v1/chat/completions", "POST /v1/messages", "POST /api/chat", "POST /generate_stream"} <= answered
