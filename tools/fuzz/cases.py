"""Damaged requests to every route, made from the examples of the OpenAPI document.

A body is an example with a few other fields of its schema, and then a value, byte, path, header or method is damaged.
Bodies at and beyond the bounds of the schemas are the subject of `tools.fuzz.document`.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, get_args
from urllib.parse import quote, urlencode

from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.core.routing import Route
from rnn_engine_server.core.schema import RequestBody
from rnn_engine_server.openapi.document import EXAMPLES
from rnn_engine_server.store.batches import Endpoint
from tools.fuzz.mutations import HOSTILE, mutate_bytes, mutate_value
from tools.live_server.asking import encode_request

NAMES = tuple(f"fuzz {number}" for number in range(6))
"""Names of states, which are made, used and removed again and again."""

_VALUES: tuple[object, ...] = (
    *("Hello", "", " ", "none", "user", "auto", *NAMES),
    *(0, 1, 3, 0.5, True, False, None, [], {}, ["a"], [1, 2]),
)
_IDS_OF = {
    "input_file_id": "/v1/files",
    "training_file": "/v1/files",
    "validation_file": "/v1/files",
    "previous_response_id": "/v1/responses",
    "conversation": "/v1/conversations",
}
"""Fields that hold the id of an object, with the path under which the object is made."""

_RECENT = 8  # ids of a path, from which one is chosen
_PARAMETER = re.compile(r"\{([a-z]+)(:[^}]+)?\}")
_ID = re.compile(rb'"(?:id|name)": ?"([^"\\]{1,80})"')
_BOUNDARY = "fuzz"

LEFT_OUT = frozenset(
    {"/admin/models/load", "/admin/models/unload", "/api/models/state", "/switch-model", "/v1/engine/events"}
)
"""Paths that unload the model, or whose answer does not end."""

TRIED_ROUTES = tuple(route for route in ALL_ROUTES if route.path not in LEFT_OUT)
_MOST = {"max_tokens": 8, "max_completion_tokens": 8, "max_output_tokens": 8, "n": 4, "best_of": 4}
"""What generation fields are lowered to if a server would accept them: a fuzzer is not a load test."""

_TAKEN = 2**33  # integers below are lowered; a server refuses greater ones
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PRI", "get", "X" * 50)
_PATHS = ("/", "//", "/v1", "/v1/", "/v1/../health", "/v1/states/%2e%2e%2fx", "/%00", "*", "/v1/states/a%2Fb", "/?")
_HEADERS: tuple[tuple[str, str], ...] = (
    *(("Content-Encoding", coding) for coding in ("gzip", "deflate", "br", "zstd", "identity", "x")),
    *(("Content-Length", length) for length in ("-1", "0", "5", "99999999999999999999", "1, 2", "+3", "0x5")),
    *(("Transfer-Encoding", coding) for coding in ("chunked", "gzip, chunked", "x", "chunked, chunked")),
    *(("Expect", what) for what in ("100-continue", "x")),
    *(("Host", host) for host in ("", "evil.example", "127.0.0.1:1", "[::1", "a" * 300, "127.0.0.1, x")),
    *(("Origin", origin) for origin in ("null", "http://evil.example", "", "http://127.0.0.1")),
    *(("Authorization", key) for key in ("Bearer ", "bearer x", "Basic eA==", "Bearer \xff", "Bearer " + "x" * 5000)),
    *(("Content-Type", kind) for kind in ("text/plain", "application/cbor", "application/json; charset=x", "")),
    *(("Content-Type", "multipart/form-data"), ("Range", "bytes=0-1"), ("Upgrade", "websocket")),
    *(("Connection", "Upgrade, HTTP2-Settings"), ("X-Request-Id", "\x01"), ("Cookie", "a" * 7000)),
    *(("Accept-Encoding", "gzip"), ("If-None-Match", "*"), ("Access-Control-Request-Method", "X")),
)


KINDS = (
    *("nothing", "nothing", "nothing"),
    *("value", "value", "value", "value", "value", "body", "body"),
    *("bytes", "bytes", "method", "path", "header", "header"),
)
"""What is damaged. A kind that is listed more often is chosen more often."""

_WHOLE = ("nothing", "value")  # the kinds of requests that a server must answer


@dataclass(frozen=True, slots=True)
class Case:
    """One damaged request. The server must answer it if it is `whole`; otherwise it may also close the connection."""

    number: int
    route: str
    kind: str  # what is wrong with the request
    data: bytes
    whole: bool


class KnownIds:
    """The ids and names of the objects that a server has made, by the path that lists them, such as `/v1/files`."""

    def __init__(self) -> None:
        self._ids: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_RECENT))

    def learn(self, route: str, status: int | None, body: bytes) -> None:
        """Take the ids in an answer to `route`, a method and a path as in the table of routes."""
        path = route.partition(" ")[2]
        if status == 200 and not path.endswith("}"):
            self._ids[path].extend(found.decode() for found in _ID.findall(body))

    def choose(self, path: str, random: Random) -> str:
        """Return an id of an object under `path`, mostly a recent one; now and then, what can't be one."""
        if self._ids[path] and random.random() < 0.8:
            return random.choice(self._ids[path])
        return str(random.choice((*NAMES, *HOSTILE)))


@dataclass(frozen=True, slots=True)
class CaseMaker:
    """A generator of damaged requests for one seed.

    The case with a given number is the same in every run, except for the ids of objects that the server has made.
    """

    routes: Sequence[Route]
    files: Mapping[str, bytes]  # states, by form, which uploads are made from
    seed: int
    kinds: Sequence[str] = KINDS
    ids: KnownIds = field(default_factory=KnownIds)

    def make(self, number: int) -> Case:
        random = Random(f"{self.seed} {number}")
        route = random.choice(self.routes)
        kind = random.choice(self.kinds)
        return Case(number, f"{route.method} {route.path}", kind, self._data(route, kind, random), kind in _WHOLE)

    def _data(self, route: Route, kind: str, random: Random) -> bytes:
        """Return a request to `route` as bytes. `kind` names the part that is damaged, such as "value" or "path"."""
        method, path, headers = route.method, self._path(route, random), {"Connection": "close"}
        body = self._body(route, random)
        match kind:
            case "value" if route.request is not None or route.form is not None:
                body = _lower(mutate_value(body, random))
            case "method":
                method = random.choice(_METHODS)
            case "path":
                path = random.choice((*_PATHS, path + "/", mutate_bytes(path.encode(), random).decode("latin-1")))
            case "header":
                headers.update([random.choice(_HEADERS)])
        if route.form is not None and isinstance(body, dict):
            headers["Content-Type"] = f"multipart/form-data; boundary={_BOUNDARY}"
            body = _encode_form(body)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        match kind:
            case "body":
                content = mutate_bytes(content, random)
            case "header" if random.random() < 0.3:
                content = gzip.compress(content, mtime=0)
        request = encode_request(method, path, content, headers)
        return mutate_bytes(request, random) if kind == "bytes" else request

    def _path(self, route: Route, random: Random) -> str:
        """Return one of the route's paths with its parameters filled in, sometimes with a query string."""
        path = _PARAMETER.sub(partial(self._parameter, route, random), random.choice(route.paths))
        known = {**dict.fromkeys(route.query, ""), "limit": "", "unknown": ""}
        if random.random() < 0.3:
            query = {random.choice(list(known)): random.choice(("full", "prefab", "5", "true", *map(str, HOSTILE)))}
            path += "?" + urlencode(query, errors="replace")
        return path

    def _parameter(self, route: Route, random: Random, found: re.Match[str]) -> str:
        """Return the text in place of a parameter of a path."""
        match found[1]:
            case "model":
                return random.choice(("demo", "a/b", f"demo:{quote(random.choice(NAMES))}"))
            case "name":
                value = random.choice(NAMES) if random.random() < 0.8 else str(random.choice(HOSTILE))
            case _:
                value = self.ids.choose(route.path.partition("/{" + found[1])[0], random)
        return quote(value.encode(errors="replace"), safe="")

    def _body(self, route: Route, random: Random) -> Any:  # noqa: ANN401
        """Return a body that the route accepts: a JSON-like value, the bytes of a file, or the fields of a form."""
        if route.method == "PUT":
            return random.choice(list(self.files.values()))
        if route.form is not None:
            return {"purpose": random.choice(("batch", "fine-tune")), "file": self._lines(random)}
        if route.request is None:
            return b""
        return self._value(route.request, random)

    def _value(self, kind: type[RequestBody], random: Random) -> Any:  # noqa: ANN401
        """Return an example of a body, often with other fields that its schema knows, of random values."""
        body: dict[str, Any] = dict(EXAMPLES[kind.__name__])
        known = [*kind.model_fields, "unknown"]
        body |= {random.choice(known): random.choice(_VALUES) for _ in range(random.choice((0, 0, 1, 2)))}
        body |= {name: self.ids.choose(path, random) for name, path in _IDS_OF.items() if name in body}
        body |= {name: random.choice(NAMES) for name in ("state", "name", "save_as") if name in body}
        return _lower(body)

    def _lines(self, random: Random) -> str:
        """Return a file for a job: requests of a batch, or examples to learn. Some lines are damaged."""
        route = random.choice([route for route in self.routes if route.path in get_args(Endpoint)])
        lines: list[object] = []
        for number in range(random.randint(0, 12)):
            if route.request is None or random.random() < 0.5:
                question, answer = ({"role": role, "content": "Hello"} for role in ("user", "assistant"))
                line: object = {"messages": [question, answer]}
            else:
                body = {**self._value(route.request, random), "stream": False}
                line = {"custom_id": str(number), "method": "POST", "url": route.path, "body": body}
            lines.append(mutate_value(line, random) if random.random() < 0.1 else line)
        return "\n".join(map(json.dumps, lines))


def _encode_form(fields: Mapping[str, object]) -> bytes:
    parts = [
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"'
        f"{'; filename=a.jsonl' if name == 'file' else ''}\r\n\r\n{value}\r\n"
        for name, value in fields.items()
    ]
    return "".join((*parts, f"--{_BOUNDARY}--\r\n")).encode(errors="surrogatepass")


def _lower(body: Any) -> Any:  # noqa: ANN401
    """Return `body` with its numbers of tokens and choices lowered, so that no request runs for long."""
    if not isinstance(body, dict):
        return body
    lowered = {}
    for name, value in body.items():
        most = _MOST.get(name)
        lowered[name] = most if most is not None and isinstance(value, int) and most < value < _TAKEN else value
    return lowered
