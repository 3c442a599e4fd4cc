"""A proxy that passes requests on to a server and keeps them, for what programs send by themselves."""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

_OF_CONNECTION = ("accept-encoding", "connection", "content-length", "host", "transfer-encoding")


class Exchange(NamedTuple):
    """A request with a body that was passed on, and the status of its answer."""

    path: str
    body: dict[str, Any]
    status: int

    @property
    def history(self) -> str:
        """The conversation that the request repeats, as JSON."""
        return json.dumps(self.body.get("input") or self.body.get("messages"))


class Recorder(ThreadingHTTPServer):
    """The proxy, at `url`. It runs while it is entered as a context.

    Requests are made greedy, so that answers are the same each time. If `tool` is set, the next request that offers
    this tool is made to call it.
    """

    daemon_threads = True

    def __init__(self, root: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = root.removeprefix("http://")
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.tool: str | None = None
        self.exchanges: list[Exchange] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def change(self, path: str, body: dict[str, Any]) -> None:
        body["temperature"] = 0
        offered = {tool.get("name") or tool.get("function", {}).get("name") for tool in body.get("tools", [])}
        if self.tool and self.tool in offered:
            name = {"name": self.tool}
            chosen = {"type": "tool" if "/messages" in path else "function"}
            body["tool_choice"] = {**chosen, **({"function": name} if "/chat/" in path else name)}
            self.tool = None


class _Handler(BaseHTTPRequestHandler):
    server: Recorder

    def log_message(self, *_: object) -> None:
        pass

    def _pass_on(self) -> None:
        sent = self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.loads(sent) if sent else {}
        if body:
            self.server.change(self.path, body)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_CONNECTION}
        connection = HTTPConnection(self.server.target)
        connection.request(self.command, self.path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        if body:
            self.server.exchanges.append(Exchange(self.path, body, answer.status))
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OF_CONNECTION:
                self.send_header(name, value)
        self.end_headers()
        while part := answer.read1():
            self.wfile.write(part)
            self.wfile.flush()

    do_GET = do_HEAD = do_POST = _pass_on  # noqa: N815
