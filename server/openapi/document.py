"""The OpenAPI 3.1 document of all routes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from threading import Lock
from typing import Any, get_args, get_type_hints

from server.http.errors import ErrorForm, Failure
from server.http.routing import EVENTS, JSON, MODEL_QUERY, Kind, Route
from server.openapi.bodies import Schema, describe_bodies
from server.openapi.examples import EXAMPLES
from server.schemas.api_document import ApiDocument
from server.schemas.error import ErrorBody

_PARAMETER = re.compile(r"\{(\w+)(?::[^}]*)?\}")
_END = "[DONE]"  # what the last event of OpenAI's streams holds
_BINARY = "application/octet-stream"
_INFO = (
    "RWKV language models behind the APIs of OpenAI, Anthropic, Ollama, ai00, llama-server, text-generation-inference "
    "and realizar. docs/http-api.md says what is different from these, and why."
)
_FAILURES: Mapping[int, str] = {
    400: "The body is no JSON, or a field holds a value that is not allowed; the message names it.",
    401: "The API key is missing or wrong.",
    403: "The scope of the API key is too small, or the page, machine or host name is not admitted.",
    404: "There is no such model, state or other thing.",
    408: "The body came too slowly.",
    413: "The body is larger than the server takes.",
    429: "The queue is full, or the client has too many requests; try again after `Retry-After`.",
    500: "The model failed on this request.",
    501: "This server can't do it; the message says why.",
    503: "The server stops, or its device is being opened again; try again after `Retry-After`.",
    504: "The request took too long.",
    507: "The disk or the device has no room.",
}
_OPEN_FAILURES = (400, 401, 403, 404, 408, 413, 500, 503)  # of routes that always answer
_RETRY_HEADERS = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}


class DocumentMaker:
    """Makes the document of some routes when it is first asked for; any thread may ask."""

    def __init__(self, routes: Iterable[Route], *, asks_for_key: bool, strict: bool) -> None:
        self._routes = tuple(routes)
        self._settings: dict[str, bool] = {"asks_for_key": asks_for_key, "strict": strict}
        self._lock = Lock()
        self._text: str | None = None

    def text(self) -> str:
        """Return the document as JSON; takes some tenths of a second the first time."""
        with self._lock:
            if self._text is None:
                self._text = json.dumps(make_document(self._routes, **self._settings))
            return self._text


def make_document(routes: Iterable[Route], *, asks_for_key: bool = False, strict: bool = True) -> ApiDocument:
    """Return the document of a server that asks for API keys or not, and refuses unknown fields or leaves them out."""
    routes = list(routes)
    schemas, shared = describe_bodies(dict.fromkeys(_kinds(routes)), strict=strict)
    operations = _Operations(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        for path in route.paths:
            paths.setdefault(plain_path(path), {})[route.method.lower()] = operations.make(route, path)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rnn-engine",
            "version": version("rnn-engine"),
            "description": _INFO,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"x-api-key": []}] if asks_for_key else [],
        "tags": [{"name": name, "description": text} for name, text in dict.fromkeys(map(_tag, routes))],
        "paths": paths,
        "components": {
            "schemas": shared,
            "responses": operations.errors,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
    }


def plain_path(path: str) -> str:
    """Return a route's path without the patterns of its parameters."""
    return _PARAMETER.sub(r"{\1}", path)


class _Operations:
    """Makes operations, and keeps the answers to errors that they refer to."""

    def __init__(self, schemas: Mapping[Kind, Schema]) -> None:
        self._schemas = schemas
        self._statuses: dict[ErrorForm, dict[int, int]] = {}  # a failure's status -> the status that tells of it
        self.errors: dict[str, Any] = {}

    def make(self, route: Route, path: str) -> dict[str, Any]:
        """Return the operation of a route under one of its paths."""
        operation: dict[str, Any] = {
            "operationId": "_".join([route.method.lower(), *re.findall(r"\w+", plain_path(path))]),
            "summary": route.summary,
            "tags": [_tag(route)[0]],
            "responses": {str(status): answer for status, answer in sorted(self._answers(route).items())},
        }
        if parameters := [*_path_parameters(path), *_query_parameters(route)]:
            operation["parameters"] = parameters
        if route.request is not None:
            content: dict[str, Any] = {"schema": self._schemas[route.request]}
            if (example := EXAMPLES.get(route.request.__name__)) is not None:
                content["example"] = example
            operation["requestBody"] = {"required": True, "content": {JSON: content}}
        elif route.method == "PUT":
            operation["requestBody"] = {"required": True, "content": {_BINARY: {"schema": {}}}}
        if route.always:
            operation["security"] = []
        else:
            operation["x-scope"] = route.scope.value
        if path != route.path:
            operation["x-alias-of"] = plain_path(route.path)
        return operation

    def _answers(self, route: Route) -> dict[int, Any]:
        answers: dict[int, Any] = self._failures(route)
        for status, kind in route.also_answers.items():
            answers[status] = {"description": _FAILURES[status], "content": {JSON: {"schema": self._schemas[kind]}}}
        if route.response is not ErrorBody:
            answers[200] = {"description": "The answer.", "content": self._content(route)}
        return answers

    def _content(self, route: Route) -> dict[str, Any]:
        if route.response is None:
            return {route.content_type: {"schema": {}}}
        if route.content_type != JSON:
            return {route.content_type: self._stream(route, route.response)}
        content: dict[str, Any] = {JSON: {"schema": self._schemas[route.response]}}
        if route.chunk is not None:
            content[route.stream_type] = self._stream(route, route.chunk)
        return content

    def _stream(self, route: Route, event: Kind) -> dict[str, Any]:
        """Return what is said of a stream. The schema is that of one server-sent event, as later versions have it."""
        held = {"anyOf": [self._schemas[event], self._schemas[_error_body(route.error_form)]]}
        if EVENTS not in (route.content_type, route.stream_type):
            return {"schema": {}, "x-event-schema": held}
        data = {"type": "string", "contentMediaType": JSON, "contentSchema": held}
        fields = {"event": {"type": "string"}, "data": {"anyOf": [{"const": _END}, data]}}
        return {"schema": {"type": "object", "required": ["data"], "properties": fields}, "x-event-schema": held}

    def _failures(self, route: Route) -> dict[int, Any]:
        if route.error_form not in self._statuses:
            self._statuses[route.error_form] = dict(self._describe(route.error_form))
        statuses = self._statuses[route.error_form]
        told = {statuses[status] for status in (_OPEN_FAILURES if route.always else _FAILURES)}
        return {status: {"$ref": f"#/components/responses/{_error_name(route.error_form, status)}"} for status in told}

    def _describe(self, form: ErrorForm) -> Iterator[tuple[int, int]]:
        """Enter the answers with which an API tells of failures; yield which status stands for which."""
        for failed, meaning in _FAILURES.items():
            failure = Failure(failed, "what was wrong", "server_error" if failed >= 500 else "invalid_request_error")
            status, body = form(failure)
            answer = self.errors.setdefault(
                _error_name(form, status),
                {"description": "", "content": {JSON: {"schema": self._schemas[_error_body(form)], "example": body}}},
            )
            answer["description"] = f"{answer['description']} {meaning}".strip()
            if failed in (429, 503):
                answer["headers"] = _RETRY_HEADERS
            yield failed, status


def _kinds(routes: Iterable[Route]) -> Iterator[Kind]:
    for route in routes:
        kinds = (route.request, route.response, route.chunk, *route.also_answers.values())
        yield from (kind for kind in kinds if kind is not None)
        yield _error_body(route.error_form)


def _error_body(form: Callable[..., object]) -> type[object]:
    """Return the type of the bodies that a form makes, which its annotation says."""
    _status, body = get_args(get_type_hints(form)["return"])
    kind: type[object] = body
    return kind


def _error_name(form: ErrorForm, status: int) -> str:
    return f"{getattr(form, '__name__', 'error')}_{status}"


def _tag(route: Route) -> tuple[str, str]:
    """Return the name of the route's group, and what it is: the module, or package, that has the handler."""
    package, name = "server.routes", route.handler.__module__.split(".")[2]
    words = (sys.modules[f"{package}.{name}"].__doc__ or "").split("\n", maxsplit=1)[0]
    return name.replace("_", "-"), words


def _path_parameters(path: str) -> Iterator[dict[str, Any]]:
    for name in _PARAMETER.findall(path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _query_parameters(route: Route) -> Iterator[dict[str, Any]]:
    known = {**(MODEL_QUERY if route.uses_model else {}), **route.query}
    for name, meaning in known.items():
        yield {"name": name, "in": "query", "description": meaning, "schema": {"type": "string"}}
