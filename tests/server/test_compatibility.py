"""docs/compatibility.md is right: every field of every system is sent to a server over the demo model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.core.routing import Route
from rnn_engine_server.core.schema import RequestBody
from rnn_engine_server.core.settings import ServerSettings
from rnn_engine_server.openapi.document import plain_path
from tests.support.demo_server import demo_server
from tools.compatibility.document import DOCUMENT, SYSTEMS, Call, Made, document

ROUTES = {f"{route.method} {plain_path(path)}": route for route in ALL_ROUTES for path in route.paths}
CALLS = [pytest.param(call, id=f"{system.name} {call.path}") for system in SYSTEMS for call in system.calls]
LISTED = [(system.name, route) for system in SYSTEMS for route in system.routes]
LEFT_OUT = [
    call for system in SYSTEMS for call in system.calls if any(one.verdict == "left_out" for one in call.fields)
]
REFUSED = [(system.name, route) for system in SYSTEMS for route in system.refused_routes]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with demo_server(ServerSettings()) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def strict() -> Iterator[httpx.Client]:
    with demo_server(ServerSettings(strict=True)) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def test_the_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == document(), "run: python -m tools.compatibility"


@pytest.mark.parametrize("call", CALLS)
def test_fields_are_taken_or_refused_as_the_table_says(client: httpx.Client, call: Call) -> None:
    path = call.path
    if call.before is not None:
        assert client.post(call.before.path, json=call.before.body).status_code == 200
        path = path.replace("{name}", call.before.body["name"])
    assert client.post(path, json=call.body).status_code == 200
    for field in call.fields:
        if isinstance(field.value, Made):
            made = client.post(field.value.path, json=field.value.body)
            field = replace(field, value=made.json()["id"])
        response = client.post(path, json=field.put_into(call.body))
        told = f"{field.name}: {response.status_code} {response.text[:300]}"
        if field.verdict == "refused":
            assert response.status_code in (400, 404, 422, 501), told
            assert field.name in response.text or response.status_code == 404, told
        else:
            assert response.status_code == 200, told
            assert (field.name in response.headers.get("X-Left-Out", "")) == (field.verdict == "left_out"), told


@pytest.mark.parametrize("call", LEFT_OUT, ids=lambda call: call.path)
def test_a_strict_server_refuses_what_others_leave_out(strict: httpx.Client, call: Call) -> None:
    for field in call.fields:
        if field.verdict == "left_out":
            response = strict.post(call.path, json=field.put_into(call.body))
            assert (response.status_code, field.name in response.text) in ((400, True), (422, True)), response.text


@pytest.mark.parametrize("call", CALLS)
def test_what_has_no_effect_is_what_the_schema_ignores(call: Call) -> None:
    kind = ROUTES[f"POST {call.path}"].request
    assert kind is not None
    assert issubclass(kind, RequestBody)
    for field in call.fields:
        if field.inside is None and field.verdict == "no_effect":
            assert field.name in {*kind.ignored, *kind.neutral, *kind.lacking}, field.name
        if field.inside is None and field.name in kind.ignored:
            assert field.verdict in ("no_effect", "different"), field.name


def test_no_field_is_told_twice() -> None:
    for param in CALLS:
        [call] = param.values
        assert isinstance(call, Call)
        names = [(field.inside, field.name) for field in call.fields]
        assert sorted(map(str, names)) == sorted(map(str, set(names))), call.path


@pytest.mark.parametrize(("system", "route"), LISTED)
def test_other_routes_are_there(system: str, route: str) -> None:
    assert isinstance(ROUTES[route], Route)


@pytest.mark.parametrize(("system", "route"), REFUSED)
def test_refused_routes_are_refused(client: httpx.Client, system: str, route: str) -> None:
    method, path = route.split()
    assert client.request(method, path, json={}).status_code in (404, 405, 501)
