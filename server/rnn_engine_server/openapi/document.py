"""Generate the OpenAPI 3.1 document of all routes, and send it and the page to browse it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core.core_schema import CoreSchema, ModelSchema
from typing_extensions import TypedDict

from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import ErrorForm, Failure
from rnn_engine_server.core.handlers import Encoded, RouteTable
from rnn_engine_server.core.routing import EVENTS, FORM, HTML, JSON, MODEL_QUERY, AppKey, Kind, Route
from rnn_engine_server.core.schema import ErrorBody, Only, RequestBody, only_of


class ApiDocument(TypedDict):
    """The OpenAPI 3.1 document of all routes and bodies.

    `x-alias-of` of an operation is the main path of the same route. `x-scope` is the scope that an API key needs.
    `x-event-schema` describes one event of a stream.
    """

    openapi: Literal["3.1.0"]
    info: dict[str, Any]
    servers: list[dict[str, Any]]
    security: list[dict[str, list[str]]]
    tags: list[dict[str, str]]
    paths: dict[str, dict[str, Any]]
    components: dict[str, dict[str, Any]]


Schema: TypeAlias = dict[str, Any]

_PLACE = "#/components/schemas/{model}"
_NULL: Schema = {"type": "null"}


def describe_bodies(kinds: Iterable[Kind], *, strict: bool = True) -> tuple[Mapping[Kind, Schema], dict[str, Schema]]:
    """Return the JSON schema of each body of a request or an answer, and the shared schemas, by name.

    Bodies refer to the shared schemas. With `strict` the server refuses unknown fields.
    """
    kinds = list(kinds)
    bodies: list[tuple[int, JsonSchemaMode, TypeAdapter[Any]]] = [
        (number, "validation", TypeAdapter(cast(Any, kind))) for number, kind in enumerate(kinds)
    ]
    schemas, shared = TypeAdapter.json_schemas(
        bodies, ref_template=_PLACE, schema_generator=_BodySchema if strict else _LenientSchema
    )
    return {kinds[number]: schema for (number, _), schema in schemas.items()}, shared.get("$defs", {})


class _BodySchema(GenerateJsonSchema):
    """A generator of JSON schemas that adds what a request body accepts beside its fields, such as aliases."""

    unknown: ClassVar[Schema] = _NULL  # the schema of an unknown field

    def model_schema(self, schema: ModelSchema) -> Schema:
        made = super().model_schema(schema)
        kind = schema["cls"]
        if not issubclass(kind, RequestBody):
            return made
        return _accepted(kind, made, _NULL if kind.always_strict else self.unknown)

    def field_title_should_be_set(self, schema: CoreSchema | Any) -> bool:  # noqa: ANN401, ARG002
        return False  # a title would say the field's name again


class _LenientSchema(_BodySchema):
    """A `_BodySchema` for a server that ignores unknown fields."""

    unknown: ClassVar[Schema] = {}


def _accepted(kind: type[RequestBody], schema: Schema, unknown: Schema) -> Schema:
    """Return a request body's JSON schema with aliases of fields, null for defaults, and fields that have no effect."""
    fields: Mapping[str, Schema] = schema.get("properties", {})
    required = schema.get("required", [])
    properties = {name: field if name in required else _or_null(field) for name, field in fields.items()}
    properties |= {name: _without_effect(only_of(each)) for name, each in kind.neutral.items() if name not in fields}
    lacking = {name: values for name, values in kind.lacking.items() if name not in fields}
    properties |= {name: _without_effect(Only(values)) if unknown == _NULL else {} for name, values in lacking.items()}
    properties |= {name: {"description": "Accepted without effect."} for name in kind.ignored if name not in fields}
    properties.update({name: dict(field) for name, field in kind.unfolded.items()})
    for alias, name in kind.aliases.items():
        properties[alias] = {**_or_null(_bare(fields[name])), "description": f"Another name of `{name}`."}
    made = {**schema, "properties": properties, "additionalProperties": unknown}
    made.pop("required", None)
    return made | _require(required, kind.aliases)


def _require(names: Iterable[str], aliases: Mapping[str, str]) -> Schema:
    """Return JSON schema keywords that require each of the fields `names`, be it under its name or an alias."""
    spellings = {name: [name, *(alias for alias, field in aliases.items() if field == name)] for name in names}
    wanted: Schema = {}
    if plain := [name for name, known in spellings.items() if len(known) == 1]:
        wanted["required"] = plain
    if choices := [known for known in spellings.values() if len(known) > 1]:
        wanted["allOf"] = [{"anyOf": [{"required": [name]} for name in known]} for known in choices]
    return wanted


def _without_effect(only: Only) -> Schema:
    return {"enum": [*only.values, None], "description": f"Accepted if the value has no effect, since {only.because}."}


def _bare(schema: Schema) -> Schema:
    return {keyword: value for keyword, value in schema.items() if keyword not in ("description", "default")}


def _or_null(schema: Schema) -> Schema:
    """Return a field's JSON schema changed to accept null as well, which stands for the field's default."""
    choices = schema.get("anyOf")
    if choices is not None:
        return schema if _NULL in choices else {**schema, "anyOf": [*choices, _NULL]}
    said: Schema = {keyword: schema[keyword] for keyword in ("description", "default") if keyword in schema}
    bare = _bare(schema)
    return {"anyOf": [bare, _NULL], **said} if bare else schema


EXAMPLES: Mapping[str, Mapping[str, Any]] = json.loads(
    files("rnn_engine_server.openapi").joinpath("examples.json").read_text("utf-8")
)
"""An example of each request body, by the name of its class."""

_PARAMETER = re.compile(r"\{(\w+)(?::[^}]*)?\}")
_END = "[DONE]"  # the data of the last event of OpenAI's streams
_BINARY = "application/octet-stream"
_INFO = (
    "RWKV language models behind the APIs of OpenAI, Anthropic, Ollama, ai00, llama-server, vLLM, "
    "text-generation-inference, text-embeddings-inference, Cohere, Mistral, KoboldCpp and RWKV-Runner. "
    "docs/http-api.md says what is different from these, and why."
)
_FAILURES: Mapping[int, str] = {
    400: "The body is not JSON, or a field holds a value that is not allowed; the message names the field.",
    401: "The API key is missing or wrong.",
    403: "The API key lacks the scope, or the server refuses requests from this page, machine or host name.",
    404: "There is no such model, state or other thing.",
    408: "The client sent the body too slowly.",
    413: "The body is larger than the server takes.",
    429: "The queue is full, or the client has too many requests; try again after `Retry-After`.",
    500: "The model failed on this request.",
    501: "This server can't do it; the message says why.",
    503: "The server is stopping, or its device is being opened again; try again after `Retry-After`.",
    504: "The request took too long.",
    507: "The disk or the device has no room.",
}
_OPEN_FAILURES = (400, 401, 403, 404, 408, 413, 500, 503)  # of routes that always answer
_RETRY_HEADERS = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}


def make_document(
    routes: Iterable[Route], server: str = ".", *, asks_for_key: bool = False, strict: bool = False
) -> ApiDocument:
    """Generate the OpenAPI document of `routes`. With `strict` the server rejects unknown fields, else it ignores them.

    `server` is the server's address, relative to that of the document.
    """
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
        "servers": [{"url": server}],
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
    """Generates the OpenAPI operations of routes, and collects the error answers that they refer to in `errors`."""

    def __init__(self, schemas: Mapping[Kind, Schema]) -> None:
        self._schemas = schemas
        self._statuses: dict[ErrorForm, dict[int, int]] = {}  # a failure's status -> the answer's status
        self.errors: dict[str, Any] = {}

    def make(self, route: Route, path: str) -> dict[str, Any]:
        """Return the OpenAPI operation for a route under one of its paths."""
        operation: dict[str, Any] = {
            "operationId": "_".join([route.method.lower(), *re.findall(r"\w+", plain_path(path))]),
            "summary": route.summary,
            "tags": [_tag(route)[0]],
            "responses": {str(status): answer for status, answer in sorted(self._answers(route).items())},
        }
        text = {"type": "string"}
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {**text, "minLength": 1}}
            for name in _PARAMETER.findall(path)
        ]
        query = {**(MODEL_QUERY if route.uses_model else {}), **route.query}
        parameters += [
            {"name": name, "in": "query", "description": meaning, "schema": text} for name, meaning in query.items()
        ]
        if parameters:
            operation["parameters"] = parameters
        if route.request is not None:
            content: dict[str, Any] = {"schema": self._schemas[route.request]}
            if (example := EXAMPLES.get(route.request.__name__)) is not None:
                content["example"] = example
            operation["requestBody"] = {"required": not route.request.may_be_empty, "content": {JSON: content}}
        elif route.form is not None:
            operation["requestBody"] = {"required": True, "content": {FORM: {"schema": self._schemas[route.form]}}}
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
        """Return the OpenAPI media type of a stream.

        Its schema is that of one server-sent event, as in later OpenAPI versions.
        """
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
        """Add to `errors` the error answers in the form of one API.

        Yields pairs of a failure's status and the status with which that API answers.
        """
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
        kinds = (route.request, route.form, route.response, route.chunk, *route.also_answers.values())
        yield from (kind for kind in kinds if kind is not None)
        yield _error_body(route.error_form)


def _error_body(form: Callable[..., object]) -> type[object]:
    """Return the type of an API's error bodies: the one in the return annotation of `form`, which makes them."""
    _status, body = get_args(get_type_hints(form)["return"])
    kind: type[object] = body
    return kind


def _error_name(form: ErrorForm, status: int) -> str:
    return f"{getattr(form, '__name__', 'error')}_{status}"


_DIVIDED = (
    "rnn_engine_server.apis.engine",
    "rnn_engine_server.apis.openai",
)  # each module of these packages is a group of its own


def _tag(route: Route) -> tuple[str, str]:
    """Return the name and the description of the group of routes that a route belongs to.

    A group is the package or module of an API; its description is the first line of the docstring.
    """
    parts = route.handler.__module__.split(".")
    length = 3 if parts[1] == "apis" else 2
    if ".".join(parts[:length]) in _DIVIDED:
        length += 1
    words = (sys.modules[".".join(parts[:length])].__doc__ or "").split("\n", maxsplit=1)[0]
    return parts[length - 1].replace("_", "-"), words


class KeptDocuments:
    """The document as JSON for each address of the server, made once, on a thread: `make` takes tenths of a second."""

    def __init__(self, make: Callable[[str], Mapping[str, object]]) -> None:
        self._make = make
        self._made: dict[str, asyncio.Task[bytes]] = {}

    async def get(self, server: str) -> bytes:
        if server not in self._made:
            self._made[server] = asyncio.create_task(asyncio.to_thread(lambda: json.dumps(self._make(server)).encode()))
        return await asyncio.shield(self._made[server])


API_DOCUMENTS = AppKey("api_documents", KeptDocuments)


# The routes for the document and for the page.

HTML_TEXT = f"{HTML}; charset=utf-8"
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}


_page = cache(files("rnn_engine_server.openapi").joinpath("page.html").read_bytes)

ROUTES = RouteTable(uses_model=False)


@ROUTES.get("/openapi.json", "/api-docs/openapi.json", answer=ApiDocument, always=True, is_page=True)
async def document(call: Call) -> Encoded:
    """All routes and bodies, as an OpenAPI 3.1 document."""
    server = "." if call.path.count("/") == 1 else ".."
    return Encoded(await call.app[API_DOCUMENTS].get(server))


@ROUTES.get("/docs", "/api-docs", answer=None, content_type=HTML, always=True, is_page=True)
async def page(_call: Call) -> Encoded:
    """A page to browse the routes, which loads nothing from other servers."""
    body = await asyncio.to_thread(_page)
    return Encoded(body, HTML_TEXT, headers=_PAGE_HEADERS)
