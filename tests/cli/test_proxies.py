"""Proxies of the environment: never on the way to this computer, and named if they fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rnn_engine.cli.http_client import HttpClient
from rnn_engine.errors import ServerError

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
CLOSED = "http://127.0.0.1:9"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


@pytest.fixture
def port() -> Iterator[int]:
    """Yield the port of a server that answers `{"path": ...}`, and 503 as a proxy."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if self.path.startswith("http:") else 200)
            self.end_headers()
            self.wfile.write(b'{"path": "%b"}' % self.path.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="server")
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def get(url: str) -> object:
    client = HttpClient(url, None, {})
    try:
        return client.get("/a")["path"]
    finally:
        client.close()


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "127.1", "0.0.0.0", "[::ffff:127.0.0.1]"])
def test_this_computer_is_called_directly(variable: str, host: str, environment: pytest.MonkeyPatch, port: int) -> None:
    environment.setenv(variable, "socks5://127.0.0.1:9" if "all" in variable.lower() else CLOSED)
    assert get(f"http://{host}:{port}") == "/a"


def test_a_name_in_the_list_of_hosts_is_resolved(environment: pytest.MonkeyPatch, port: int) -> None:
    environment.setenv("HTTP_PROXY", CLOSED)
    environment.setattr("rnn_engine.cli.http_client.getaddrinfo", lambda *_: [(2, 1, 6, "", ("127.0.1.1", 0))])
    with pytest.raises(ServerError, match=r"^http://me\.invalid:1 can't be reached: (?!.*proxy)"):
        get("http://me.invalid:1")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_fails_is_named_without_its_password(scheme: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv(f"{scheme.upper()}_PROXY", "http://ann:secret@127.0.0.1:9")
    with pytest.raises(ServerError, match=r"^\w+://far\.invalid \(through the proxy http://127.0.0.1:9\) can't be re"):
        get(f"{scheme}://far.invalid")


def test_a_proxy_that_refuses_is_named(environment: pytest.MonkeyPatch, port: int) -> None:
    environment.setenv("ALL_PROXY", f"127.0.0.1:{port}")
    proxy = f"http://127.0.0.1:{port}"
    with pytest.raises(ServerError, match=rf"far\.invalid \(through the proxy {proxy}\) answered 503"):
        get("http://far.invalid")
    environment.setenv("NO_PROXY", ".invalid")
    with pytest.raises(ServerError, match=r"^http://far\.invalid can't be reached"):
        get("http://far.invalid")


@pytest.mark.parametrize("proxy", ["gopher://a:1", "http://a:port"])
def test_a_proxy_that_can_not_be_used_is_named(proxy: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HTTP_PROXY", proxy)
    with pytest.raises(ServerError, match=f"the proxy {proxy}, which the environment names, can't be used: expected"):
        get("http://far.invalid")
