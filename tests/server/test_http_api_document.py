"""The examples in docs/http-api.md and in the document of all routes are real ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

from jsonschema import Draft202012Validator

from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.core.schema import RequestBody
from rnn_engine_server.openapi.document import EXAMPLES, make_document
from tests.support.fake_engine import FakeEngine
from tests.support.http import Serve

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "http-api.md"


def test_every_body_has_an_example_that_fits() -> None:
    document = make_document(ALL_ROUTES, asks_for_key=False)
    kinds = {route.request for route in ALL_ROUTES if route.request is not None}
    assert sorted(EXAMPLES) == sorted(kind.__name__ for kind in kinds), (
        "see server/rnn_engine_server/openapi/document.py"
    )
    for kind in kinds:
        example = EXAMPLES[kind.__name__]
        schema = document["components"]["schemas"][kind.__name__]
        Draft202012Validator({**schema, "components": document["components"]}).validate(example)
        assert issubclass(kind, RequestBody)
        kind.parse(json.dumps(example).encode())


async def test_example_of_an_error_is_a_real_one(serve: Serve) -> None:
    [example] = re.findall(r"```json\n(.*?)\n```", DOCUMENT.read_text())
    response = await (await serve(FakeEngine())).post("/v1/completions", json={"prompt": "a", "top_p": 1.5})
    assert await response.json() == json.loads(example)
