"""`python -m tools.http_api`: write the reference in docs/http-api.md, all routes and bodies, from the JSON schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, TypeAlias, get_args, get_origin

from pydantic import BaseModel, TypeAdapter

from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.routing import FORM, JSON, Kind, Route
from rnn_engine_server.core.schema import RequestBody
from rnn_engine_server.core.settings import BOUNDS, Limits
from rnn_engine_server.openapi.document import plain_path
from tools.markdown import table

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "http-api.md"
BEGIN = "<!-- The rest is made from the code by `python -m tools.http_api`; a test compares the two. -->\n"

_LIMITS = (
    "These limits apply to one request, besides the range of each field in the next section. A request beyond "
    "a limit is refused before anything is built or run; the error names the field, the value and the limit. "
    "`/props` lists the limits of a server."
)
_NO_BOUND = 2**31 - 1  # the maximum of an integer in the schemas if a field sets no other

Schema: TypeAlias = Mapping[str, Any]


def renew(text: str) -> str:
    """Return the text of the document with a new reference. The text before the reference is unchanged."""
    return text.partition(BEGIN)[0] + BEGIN + "\n" + reference(ALL_ROUTES)


def reference(routes: Iterable[Route]) -> str:
    """Return the reference as Markdown: all routes, then the limits, then all bodies."""
    routes = list(routes)
    bodies = _Bodies()
    parts = ["## Routes", _route_table(routes)]
    parts += [part for route in routes for part in _route(route, bodies)]
    parts += ["## Limits", _LIMITS, _limits(), "## Bodies", *bodies.describe()]
    return "\n\n".join(parts) + "\n"


def _route_table(routes: Iterable[Route]) -> str:
    rows = [(route.method, _paths(route), route.summary) for route in routes]
    return table(("method", "paths", ""), rows)


def _paths(route: Route) -> str:
    return ", ".join(f"`{plain_path(path)}`" for path in route.paths)


def _route(route: Route, bodies: _Bodies) -> Iterator[str]:
    yield f"### {route.method} {plain_path(route.path)}"
    lines = [route.summary]
    if route.always:
        lines.append("Needs no API key.")
    elif route.scope is not Scope.USE:
        lines.append(f"An API key needs the scope `{route.scope.value}`.")
    if route.request is not None:
        most = route.most_body_bytes(Limits().max_body_bytes)
        size = "" if most == Limits().max_body_bytes else f", at most {most} bytes"
        lines.append(f"Body: {bodies.link(route.request)}{size}.")
    if route.form is not None:
        lines.append(f"Body: a form (`{FORM}`), {bodies.link(route.form)}.")
    lines.append(_answer(route, bodies))
    if route.chunk is not None:
        lines.append(f"With `stream` (`{route.stream_type}`), each event: {bodies.link(route.chunk)}.")
    yield " ".join(lines)
    if route.query:
        yield table(("query", ""), [(f"`{name}`", meaning) for name, meaning in route.query.items()])


def _answer(route: Route, bodies: _Bodies) -> str:
    if route.response is None:
        return f"Answer: `{route.content_type}`."
    if route.content_type != JSON:
        return f"Answer: a stream (`{route.content_type}`), each event {bodies.link(route.response)}."
    return f"Answer: {bodies.link(route.response)}."


_PLURALS = {str: "strings", float: "numbers"}


class _Bodies:
    """The bodies that the reference has to describe: those linked to so far, in the order of their first links."""

    def __init__(self) -> None:
        self._schemas: dict[str, Schema] = {}

    def link(self, kind: Kind) -> str:
        if isinstance(kind, UnionType):
            return " or ".join(map(self.link, get_args(kind)))
        if kind is str:
            return "a string"
        if get_origin(kind) is list:
            [item] = get_args(kind)
            of = _PLURALS.get(item) or self.link(item)
            return f"list of {'lists' + of.removeprefix('list') if get_origin(item) is list else of}"
        if kind.__name__ not in self._schemas:
            schema = _schema_of(kind)
            self._schemas[kind.__name__] = schema
            for name, part in schema.get("$defs", {}).items():
                self._schemas.setdefault(name, part)
        return _link(kind.__name__)

    def describe(self) -> Iterator[str]:
        requests = _request_bodies()
        for name, schema in self._schemas.items():
            yield f"### {name}"
            if "description" in schema:
                yield " ".join(schema["description"].split())
            yield _fields(schema)
            if name in requests:
                yield from _also_accepted(requests[name])


def _schema_of(kind: type[object]) -> Schema:
    if issubclass(kind, BaseModel):
        return kind.model_json_schema()
    return TypeAdapter(kind).json_schema()


def _request_bodies() -> dict[str, type[RequestBody]]:
    """Return the classes of all bodies that clients send, by name. It includes those nested in others."""
    pending: list[type[RequestBody]] = [RequestBody]
    found: dict[str, type[RequestBody]] = {}
    while pending:
        kind = pending.pop()
        found[kind.__name__] = kind
        pending += kind.__subclasses__()
    return found


def _fields(schema: Schema) -> str:
    required = schema.get("required", [])
    rows = [
        (f"`{name}`", _type(field), _presence(name, field, required), field.get("description", ""))
        for name, field in schema["properties"].items()
    ]
    return table(("field", "type", "default", ""), rows)


def _presence(name: str, field: Schema, required: Iterable[str]) -> str:
    if "default" in field:
        return f"`{json.dumps(field['default'], ensure_ascii=False)}`"
    return "" if name in required else "may be absent"


def _type(field: Schema) -> str:
    match field:
        case {"$ref": str(ref)}:
            return _link(ref.rpartition("/")[2])
        case {"anyOf": list(choices)}:
            return " or ".join(_type(choice) for choice in choices)
        case {"const": constant}:
            return f"`{json.dumps(constant)}`"
        case {"enum": list(values)}:
            return " or ".join(f"`{json.dumps(value)}`" for value in values)
        case {"type": "array", "items": items}:
            return f"list of ({_type(items)})" if "anyOf" in items else f"list of {_type(items)}"
        case {"type": "object", "additionalProperties": values}:
            return f"object of {_type(values)}"
        case {"type": str(word)}:
            return word + _range(field)
    return "any"


def _range(field: Schema) -> str:
    """Return a text for the range of a number field, such as " from 0 to 2", or "" if the field has no bounds."""
    most = "to" if "minimum" in field else "at most"
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": most, "exclusiveMaximum": "below"}
    bounds = ((word, field[name]) for name, word in words.items() if name in field)
    return "".join(f" {word} {bound:g}" for word, bound in bounds if bound < _NO_BOUND)


def _limits() -> str:
    rows = [
        (f"`{name}`", f"{getattr(Limits(), name):,} {bound.unit}", bound.help, f"`--{name.replace('_', '-')}`")
        for name, bound in BOUNDS.items()
    ]
    return table(("limit", "unless told otherwise", "", "option of `serve`"), rows)


def _also_accepted(kind: type[RequestBody]) -> Iterator[str]:
    if kind.aliases:
        yield "Other names: " + ", ".join(f"`{alias}` for `{name}`" for alias, name in kind.aliases.items()) + "."
    if kind.neutral:
        yield (
            "Accepted if the value has no effect, or null: "
            + ", ".join(
                f"`{name}`" + "".join(f" {json.dumps(value)}" for value in values[:1])
                for name, values in sorted(kind.neutral.items())
            )
            + "."
        )
    if kind.ignored:
        yield "Accepted without effect: " + ", ".join(f"`{name}`" for name in sorted(kind.ignored)) + "."


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


if __name__ == "__main__":
    DOCUMENT.write_text(renew(DOCUMENT.read_text()))
