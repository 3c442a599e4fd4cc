"""A server that answers chats with the bytes that a test chooses, and then closes the connection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

MODELS = b'{"object": "list", "data": [{"id": "broken"}]}'
STATES = b'{"object": "list", "data": [], "default": null}'


@contextmanager
def broken_server(*answers: bytes, models: bytes = MODELS, states: bytes = STATES) -> Iterator[str]:
    """Yield the URL of a server that answers POSTs with `answers`, one after the other, which include status lines.

    `models` and `states` are the bodies of the answers to requests for its lists.
    """
    left, lists = iter(answers), {"/v1/models": models, "/v1/states": states}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = lists[self.path]
            self.wfile.write(
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.wfile.write(next(left))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="broken server")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
