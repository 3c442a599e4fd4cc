"""Admission: other machines, other host names, other web pages."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest
from aiohttp import ClientResponse, web

from rnn_engine.errors import InvalidRequestError
from rnn_engine_server.auth.admission import AllowedHosts, Origins, check_listener, is_local
from rnn_engine_server.auth.keys import ApiKey
from rnn_engine_server.core.app import run
from rnn_engine_server.core.settings import AuthSettings, ServerSettings, check_origin
from tests.support.fake_engine import FakeEngine
from tests.support.http import Client, Serve, error_of

PAGE = "https://chat.example"
OTHER = "http://evil.example"
KEYS = (ApiKey.of("k"),)
TEXT = {"prompt": "My card number is 1234"}
LISTED = ServerSettings(auth=AuthSettings(cors_origins=(PAGE,)))


async def ask(client: Client, headers: dict[str, str], path: str = "/v1/completions") -> ClientResponse:
    return await client.post(path, json=TEXT, headers=headers)


class TestMachines:
    @pytest.mark.parametrize(
        ("address", "local"),
        [
            (("127.0.0.1", 5), True),
            (("127.9.0.1", 5), True),
            (("::1", 5, 0, 0), True),
            (("::ffff:127.0.0.1", 5, 0, 0), True),
            ("/run/engine.sock", True),
            ("", True),  # the other end of a Unix socket has no path
            (("192.168.1.5", 5), False),
            (("::ffff:192.168.1.5", 5, 0, 0), False),
            (("fe80::1%eth0", 5, 0, 2), False),
            (None, False),
        ],
    )
    def test_which_addresses_are_this_machine(self, address: object, local: bool) -> None:
        assert is_local(address) is local

    @pytest.mark.parametrize("host", ["0.0.0.0", "::"])
    def test_other_machines_are_not_let_in_by_accident(self, host: str) -> None:
        async def load() -> FakeEngine:
            raise AssertionError("nothing is loaded before that")

        if host == "::" and not socket.has_ipv6:
            return
        with pytest.raises(InvalidRequestError, match=r"there is no API key.*--api-key.*--open"):
            run(load, ServerSettings(host=host, port=0), lambda *_: None)

    @pytest.mark.parametrize(
        ("host", "auth", "warns"),
        [
            ("0.0.0.0", AuthSettings(open=True), True),
            ("0.0.0.0", AuthSettings(KEYS), False),
            ("127.0.0.1", AuthSettings(open=True), False),
            ("127.0.0.1", AuthSettings(), False),
        ],
    )
    def test_a_server_that_is_open_to_all_says_so(
        self, caplog: pytest.LogCaptureFixture, host: str, auth: AuthSettings, warns: bool
    ) -> None:
        with socket.create_server((host, 0)) as listener, caplog.at_level(logging.WARNING):
            check_listener(listener, auth)
        assert ("whoever reaches 0.0.0.0 may use the server" in caplog.text) is warns

    @pytest.mark.parametrize(
        ("settings", "status"),
        [
            (ServerSettings(), 403),
            (ServerSettings(auth=AuthSettings(open=True)), 200),
            (ServerSettings(auth=AuthSettings(KEYS)), 200),
        ],
    )
    async def test_a_connection_from_another_machine(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch, settings: ServerSettings, status: int
    ) -> None:
        def peer(_: web.BaseRequest, name: str, default: Any = None) -> Any:  # noqa: ANN401
            return ("203.0.113.7", 5555) if name == "peername" else default

        monkeypatch.setattr(web.BaseRequest, "get_extra_info", peer)
        client = await serve(FakeEngine(), settings)
        response = await client.get("/v1/models", headers={"Authorization": "Bearer k"})
        assert response.status == status
        if status == 403:
            assert (await error_of(response, 403))["type"] == "permission_error"


class TestHosts:
    @pytest.mark.parametrize(
        ("header", "allowed"),
        [
            ("localhost", True),
            ("LocalHost.:8000", True),
            ("127.0.0.1:65530", True),
            ("[::1]:65530", True),
            ("192.168.1.5", True),
            ("engine.lan:80", True),
            ("evil.example", False),
            ("localhost.evil.example", False),
            ("127.0.0.1.evil.example:65530", False),
            ("localhost:80:80", False),
            ("user@localhost", False),
            ("", False),
        ],
    )
    def test_which_names_are_this_server(self, header: str, allowed: bool) -> None:
        assert (header in AllowedHosts(["engine.lan"])) is allowed

    async def test_a_page_whose_name_was_bound_to_this_address(self, serve: Serve) -> None:
        engine = FakeEngine()
        client = await serve(engine)
        for path in ("/v1/cache", "/v1/states", "/health"):
            response = await client.get(path, headers={"Host": "evil.example:65530"})
            error = await error_of(response, 403)
            assert "'evil.example:65530' is not a name of this server" in error["message"]
        headers = {"Host": "evil.example", "Origin": "http://evil.example"}
        await error_of(await ask(client, headers), 403)
        assert engine.requests == []

    async def test_a_listed_name(self, serve: Serve) -> None:
        settings = ServerSettings(auth=AuthSettings(allowed_hosts=("engine.lan",)))
        client = await serve(FakeEngine(), settings)
        assert (await client.get("/v1/models", headers={"Host": "engine.lan:8000"})).status == 200

    async def test_with_a_key_names_are_checked_where_they_are_listed(self, serve: Serve) -> None:
        headers = {"Host": "engine.lan", "Authorization": "Bearer k"}
        for auth, status in ((AuthSettings(KEYS), 200), (AuthSettings(KEYS, allowed_hosts=("other.lan",)), 403)):
            client = await serve(FakeEngine(), ServerSettings(auth=auth))
            assert (await client.get("/v1/models", headers=headers)).status == status


class TestPages:
    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({}, 200),  # no browser
            ({"Origin": OTHER}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": ""}, 403),
            ({"Origin": PAGE}, 200),
            ({"Origin": "HTTPS://Chat.example"}, 200),
            ({"Origin": PAGE + ".evil.example"}, 403),
            ({"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}, 200),
            ({"Sec-Fetch-Site": "none"}, 200),
            ({"Sec-Fetch-Site": "same-origin"}, 200),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Sec-Fetch-Site": "same-site"}, 403),  # another port of this machine
            ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 403),
        ],
    )
    async def test_what_may_change_something(self, serve: Serve, headers: dict[str, str], status: int) -> None:
        engine = FakeEngine()
        assert (await ask(await serve(engine, LISTED), headers)).status == status
        assert len(engine.requests) == (status == 200)

    @pytest.mark.parametrize(
        ("origin", "admitted"),
        [
            ("http://localhost", True),
            ("https://LOCALHOST:8080", True),
            ("http://127.0.0.1:3000", True),
            ("http://[::1]:3000", True),
            ("http://notlocalhost", False),
            ("http://localhost.evil.example", False),
            ("file://localhost", False),
            ("http://[::1", False),
            ("null", False),
        ],
    )
    def test_localhost_stands_for_the_pages_of_this_machine(self, origin: str, admitted: bool) -> None:
        origins = Origins(["localhost"])
        assert origins.admits("POST", {"Origin": origin, "Host": "engine.lan"}) is admitted
        assert origins.headers(origin).get("Access-Control-Allow-Origin") == (origin if admitted else None)

    async def test_what_may_be_read(self, serve: Serve) -> None:
        client = await serve(FakeEngine(), LISTED)
        image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        frame = {**link, "Sec-Fetch-Dest": "iframe"}
        for headers, page in ((image, 403), (frame, 403), (link, 200), ({"Origin": OTHER}, 403)):
            for path, status in (("/v1/models", 403), ("/", page), ("/docs", page)):
                response = await client.get(path, headers=headers)
                assert response.status == status
                shown = "*" if "Origin" in headers else None  # the refusal itself
                assert response.headers.get("Access-Control-Allow-Origin") == shown

    async def test_the_page_of_the_server_itself(self, serve: Serve) -> None:
        client = await serve(FakeEngine())
        own = str(client.make_url("")).removesuffix("/")
        assert (await ask(client, {"Origin": own, "Sec-Fetch-Site": "same-origin"})).status == 200
        other_port = own.rpartition(":")[0] + ":1"
        assert (await ask(client, {"Origin": other_port})).status == 403

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
    async def test_a_body_that_a_page_may_send_without_asking(self, serve: Serve, kind: str) -> None:
        engine = FakeEngine()
        client = await serve(engine)
        body, headers = b'{"prompt": "a"}', {"Content-Type": kind}
        refused = await client.post("/v1/completions", data=body, headers={**headers, "Origin": OTHER})
        await error_of(refused, 403)
        assert engine.requests == []
        assert (await client.post("/v1/completions", data=body, headers=headers)).status == 200  # as `curl -d` sends it

    @pytest.mark.parametrize("path", ["/v1/completions", "/v1/states/a", "/v1/cache"])
    async def test_preflight(self, serve: Serve, path: str) -> None:
        client = await serve(FakeEngine(), LISTED)
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-api-key"}
        response = await client.options(path, headers={**asked, "Origin": PAGE})
        assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (200, PAGE)
        assert response.headers["Access-Control-Allow-Headers"] == "authorization,x-api-key"
        assert response.headers["Access-Control-Allow-Credentials"] == "true"
        assert response.headers["Vary"] == "Origin"
        assert {"GET", "POST", "PUT", "DELETE"} <= set(response.headers["Access-Control-Allow-Methods"].split(", "))

    @pytest.mark.parametrize("origin", [OTHER, "http://localhost:3000", "null"])
    @pytest.mark.parametrize("settings", [ServerSettings(), LISTED])
    async def test_a_page_that_is_not_admitted_may_read_why(
        self, serve: Serve, origin: str, settings: ServerSettings
    ) -> None:
        engine = FakeEngine()
        client = await serve(engine, settings)
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        preflight = await client.options("/v1/completions", headers={**asked, "Origin": origin})
        allowed = {name: value for name, value in preflight.headers.items() if name.startswith("Access-Control")}
        assert (preflight.status, allowed.pop("Access-Control-Allow-Origin")) == (200, "*")
        assert allowed.pop("Access-Control-Allow-Methods").startswith("GET, POST")
        assert allowed == {"Access-Control-Allow-Headers": "authorization"}
        response = await client.post("/v1/completions", json=TEXT, headers={"Origin": origin})
        assert "--cors-origin" in (await error_of(response, 403))["message"]
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        assert "Access-Control-Allow-Credentials" not in response.headers
        assert engine.requests == []

    @pytest.mark.parametrize(("body", "status"), [(TEXT, 200), ({**TEXT, "stream": True}, 200), ({}, 400)])
    async def test_listed_pages_may_read_answers(self, serve: Serve, body: dict[str, object], status: int) -> None:
        response = await (await serve(FakeEngine(), LISTED)).post(
            "/v1/completions", json=body, headers={"Origin": PAGE}
        )
        assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (status, PAGE)
        assert "Retry-After" in response.headers["Access-Control-Expose-Headers"]

    def test_every_origin(self) -> None:
        origins = Origins(["*"])
        assert origins.admits("POST", {"Origin": OTHER})
        allow = origins.headers(OTHER)
        assert (allow["Access-Control-Allow-Origin"], "Access-Control-Allow-Credentials" in allow) == ("*", False)

    def test_every_origin_needs_a_key(self) -> None:
        assert AuthSettings(KEYS, cors_origins=("*",)).cors_origins == ("*",)
        with pytest.raises(InvalidRequestError, match="any page on the web could use the server"):
            AuthSettings(cors_origins=("*",))

    @pytest.mark.parametrize("text", ["https://Chat.example:8080/", "app://obsidian.md", "null", "*"])
    def test_what_is_an_origin(self, text: str) -> None:
        assert check_origin(text) == text.lower().removesuffix("/")

    @pytest.mark.parametrize("text", ["chat.example", "https://", "https://chat.example/app", "", "https://a?b"])
    def test_what_is_no_origin(self, text: str) -> None:
        with pytest.raises(InvalidRequestError, match="expected an origin such as https://"):
            check_origin(text)


@pytest.mark.parametrize(("path", "status"), [("/v1/models", 200), ("/nothing", 404)])
async def test_what_browsers_are_told_of_every_answer(serve: Serve, path: str, status: int) -> None:
    response = await (await serve(FakeEngine())).get(path)
    assert response.status == status
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"
    assert response.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert response.headers["Cache-Control"] == "no-store"
