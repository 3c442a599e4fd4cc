"""API keys: their headers, their scopes' routes, and their files."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from pathlib import Path

import pytest

from rnn_engine.errors import InvalidRequestError
from rnn_engine_server.apis.ollama import routes as ollama_library
from rnn_engine_server.apis.openai import conversations
from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.auth.keys import ApiKey, KeyRing, Principal, Rate, Scope, read_keys
from rnn_engine_server.core.routing import Route
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Serve, error_of

KEYS = (
    ApiKey.of("op-key", "op", Scope.ADMIN),
    ApiKey.of("ann-key", "ann", Scope.MANAGE),
    ApiKey.of("bob-key", "bob", Scope.USE),
)
SETTINGS = ServerSettings(auth=AuthSettings(KEYS))
PATHS = [(route, path) for route in ALL_ROUTES for path in route.paths]
HASH = hashlib.sha256(b"ann-key").hexdigest()


def url(path: str) -> str:
    return re.sub(r"\{[^}]+\}", "x", path)


class TestSending:
    @pytest.mark.parametrize(
        "headers",
        [
            {"Authorization": "Bearer bob-key"},
            {"Authorization": "bearer bob-key"},
            {"Authorization": "BEARER  bob-key "},
            {"X-Api-Key": "bob-key"},
            {"Authorization": "Basic eA==", "X-Api-Key": "bob-key"},
        ],
    )
    async def test_admits(self, serve: Serve, headers: dict[str, str]) -> None:
        assert (await (await serve(FakeEngine(), SETTINGS)).get("/v1/models", headers=headers)).status == 200

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer"},
            {"Authorization": "bob-key"},
            {"Authorization": "Basic bob-key"},
            {"Authorization": "Bearer bob"},  # a name is no key
            {"Authorization": f"Bearer sha256:{HASH}"},  # nor is a hash
            {"X-Api-Key": ""},
        ],
    )
    async def test_refuses(self, serve: Serve, headers: dict[str, str]) -> None:
        response = await (await serve(FakeEngine(), SETTINGS)).get("/v1/models", headers=headers)
        error = await error_of(response, 401)
        assert error["type"] == "authentication_error"
        assert "Authorization: Bearer" in error["message"]
        assert response.headers["WWW-Authenticate"] == "Bearer"

    async def test_refuses_what_is_not_utf8(self, serve: Serve) -> None:
        client = await serve(FakeEngine(), SETTINGS)
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \xff\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()

    async def test_preflight_needs_none(self, serve: Serve) -> None:
        auth = AuthSettings(KEYS, cors_origins=("http://a.example",))
        client = await serve(FakeEngine(), ServerSettings(auth=auth))
        asked = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST"}
        assert (await client.options("/v1/completions", headers=asked)).status == 200


class TestRoutes:
    @pytest.mark.parametrize(("route", "path"), PATHS)
    async def test_every_route_but_health_needs_a_key(self, serve: Serve, route: Route, path: str) -> None:
        client = await serve(FakeEngine(), SETTINGS)
        open_paths = ("/health", "/api/auth/exchange", "/docs", "/openapi.json", "/web/")
        for method in (route.method, *(["HEAD"] if route.method == "GET" else [])):
            status = (await client.request(method, url(path))).status
            is_open = (route.method, route.path) == ("GET", "/") or route.path.startswith(open_paths)
            assert (status == 401) == (not is_open), method

    async def test_what_is_no_route_needs_a_key(self, serve: Serve) -> None:
        client = await serve(FakeEngine(), SETTINGS)
        assert [(await client.get(path)).status for path in ("/nothing", "/v1/states/a/b")] == [401, 401]
        assert (await client.post("/health")).status == 401

    @pytest.mark.parametrize(("route", "path"), PATHS)
    async def test_a_key_opens_the_routes_of_its_scope(self, serve: Serve, route: Route, path: str) -> None:
        client = await serve(FakeEngine(), SETTINGS)
        for key, scope in (("op-key", Scope.ADMIN), ("ann-key", Scope.MANAGE), ("bob-key", Scope.USE)):
            response = await client.request(route.method, url(path), headers={"X-Api-Key": key}, data=b"{}")
            assert (response.status == 403) == (not scope.includes(route.scope)), key

    async def test_what_changes_something_is_not_open_to_use(self) -> None:
        """Every route needs more than `use`, except those listed here, which only run the model or read."""
        runs = (
            "completions",
            "/auth/exchange",
            "choices",
            "chooses",
            "embeddings",
            "/api/oai/states",
            "/api/oai/embeds",
            "tokenize",
            "apply-template",
            "/input_tokens",
            "/embedding",
            "/completion",
            "rerank",
            "/score",
            "/pooling",
            "/embed",
            "/embed_all",
            "/similarity",
            "/predict",  # refused, as is the next
            "/embed_sparse",
            "/infill",
            "/",  # text-generation-inference's
            "/generate",
            "/generate_stream",
            "/update-config",  # which changes nothing
            "/api/extra/generate/stream",
            "/api/extra/generate/check",
            "/api/extra/last_logprobs",
            "/v2/embed",
            "/api/extra/abort",  # those of the client itself
            "/api/extra/tokencount",
            "/lora-adapters",
            "/v1/messages",
            "/count_tokens",
            "/api/chat",
            "/api/show",
            "/api/pull",  # only an admin fetches a model
            *(route.path for route in ollama_library.LIBRARY_ROUTES),  # all refused
            "/v1/responses",
            "/v1/responses/{id}",  # those of the key itself
            *(route.path for route in conversations.ROUTES),
            "/v1/responses/{id}/cancel",
            "/v1/states/compare",
            "/query",  # of a collection
        )
        for route in ALL_ROUTES:
            if route.scope is Scope.USE:
                assert route.method == "GET" or route.path.endswith(runs), route.path

    async def test_the_refusal_names_the_key_and_what_it_lacks(self, serve: Serve) -> None:
        client = await serve(FakeEngine(), SETTINGS)
        error = await error_of(await client.delete("/v1/cache", headers={"X-Api-Key": "ann-key"}), 403)
        assert error["message"] == "the API key 'ann' has the scope 'manage'; DELETE /v1/cache needs 'admin'"
        assert error["type"] == "permission_error"

    async def test_without_keys_every_route_is_open(self, serve: Serve) -> None:
        client = await serve(FakeEngine())
        for route in ALL_ROUTES:
            if route.path.endswith("/models/unload"):
                continue  # it waits for answers that are not read here
            assert (await client.request(route.method, url(route.path), data=b"{}")).status not in (401, 403)


class TestFiles:
    def test_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "keys"
        path.write_text(f"# who\n\nbob:use bob-key\n  ann   sha256:{HASH}\nop:admin op-key\n")
        assert [key.principal for key in read_keys(path)] == [
            Principal("bob", Scope.USE),
            Principal("ann", Scope.MANAGE),
            Principal("op", Scope.ADMIN),
        ]
        ring = KeyRing(read_keys(path))
        found = [ring.find(key) for key in ("ann-key", "bob-key", HASH, "")]
        assert found == [Principal("ann", Scope.MANAGE), Principal("bob", Scope.USE), None, None]

    def test_weight_and_rate_of_a_key(self, tmp_path: Path) -> None:
        path = tmp_path / "keys"
        path.write_text("ann ann-key weight=2.5 tokens=100\nbob bob-key tokens=7 requests=6\nop op-key weight=3\n")
        keys = read_keys(path)
        assert [key.principal for key in keys] == [
            Principal("ann", Scope.MANAGE, 2.5, Rate(tokens=100)),
            Principal("bob", Scope.MANAGE, 1.0, Rate(6, 7)),
            Principal("op", Scope.MANAGE, 3.0),
        ]
        path.write_text("\n".join(key.line for key in keys))
        assert read_keys(path) == keys

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("s3cret", "expected a line such as `NAME KEY`"),
            ("ann s3cret more", "expected a line such as `NAME KEY`"),
            ("ann:root s3cret", "scope: 'root' is not allowed; expected one of use, manage, admin"),
            ("ann: s3cret", "scope: '' is not allowed"),
            ("a/b s3cret", "key name: 'a/b' is not allowed; expected 1 to 64 letters"),
            ("ann sha256:s3cret", "expected a line such as"),
            *((f"ann key {word}", "expected a line such as") for word in ("weight=0", "weight=nan", "tokens=s3cret")),
            ("ann s3cret weight=1 weight=2", "`weight=NUMBER`, `requests=NUMBER` and `tokens=NUMBER` may follow"),
        ],
    )
    def test_a_line_that_is_wrong_is_told_without_its_key(self, tmp_path: Path, line: str, message: str) -> None:
        path = tmp_path / "keys"
        path.write_text(f"# who\n{line}\n")
        with pytest.raises(InvalidRequestError) as caught:
            read_keys(path)
        assert "line 2 of " in str(caught.value)
        assert message in str(caught.value)
        assert "s3cret" not in str(caught.value)

    @pytest.mark.parametrize("key", ["", " ", "k ", "k\n", "k\xe9", "k\0"])
    def test_a_key_that_nobody_can_send(self, key: str) -> None:
        with pytest.raises(InvalidRequestError, match="expected printable ASCII characters"):
            ApiKey.of(key)

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ((ApiKey.of("a", "x"), ApiKey.of("b", "x")), "two API keys are called 'x'"),
            ((ApiKey.of("a", "x"), ApiKey.of("a", "y")), "the API key 'y' is the same as that of another name"),
        ],
    )
    def test_keys_that_are_there_twice(self, keys: tuple[ApiKey, ...], message: str) -> None:
        with pytest.raises(InvalidRequestError, match=message):
            AuthSettings(keys)


async def test_the_log_names_the_key(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    client = await serve(FakeEngine(), SETTINGS)
    with caplog.at_level(logging.INFO):
        await client.post("/tokenize", json={"content": "a"}, headers={"X-Api-Key": "bob-key"})
        await client.delete("/v1/cache", headers={"X-Api-Key": "ann-key"})
    lines = [record.getMessage() for record in caplog.records]
    assert [("key=bob" in line, "key=ann" in line) for line in lines if "key=" in line] == [
        (True, False),
        (False, True),
    ]


async def test_no_key_is_told_anywhere(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        client = await serve(FakeEngine(fail_at=1), SETTINGS)
        answers = [
            await client.post("/v1/completions", json={"prompt": "a"}, headers={"Authorization": f"Bearer {key}"})
            for key in ("ann-key", "ann-key-but-wrong")
        ]
        said = [await answer.text() for answer in answers]
    assert [answer.status for answer in answers] == [500, 401]
    assert "ann-key" not in "".join(said) + caplog.text + repr(SETTINGS)
    assert HASH not in "".join(said) + caplog.text + repr(SETTINGS)
