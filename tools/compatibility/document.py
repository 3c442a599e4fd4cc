"""Generate docs/compatibility.md from systems.yaml, the table of other systems' routes and fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from tools.markdown import table

Body: TypeAlias = Mapping[str, Any]

VERDICTS = {
    "same": "the same",
    "different": "different",
    "no_effect": "no effect",
    "left_out": "left out",
    "refused": "refused",
}

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"

_HEAD = """# Compatibility

How this server differs from other systems: for each of their routes and fields, whether it is the same, different or \
refused here, and why. The page `/docs` of a server has all of its routes and fields.

* **the same**: it has the same meaning as in the other system.
* **different**: it is accepted; the difference is described beside it.
* **no effect**: it is accepted, since it can't change an answer of this server.
* **left out**: it is ignored, and the answer's header `X-Left-Out` lists it, since it does not change the text that \
the model writes. A server with `--strict` refuses it.
* **refused**: an error names the field, since it would change the answer. Null is accepted everywhere, and so are \
most values that ask for nothing, such as `"best_of": 1`.

A field that is in none of these tables is left out, too, unless its name looks like a misspelled one.

<!-- Made from tools/compatibility by `python -m tools.compatibility`; a test sends every field to a server. -->
"""


@dataclass(frozen=True, slots=True)
class Made:
    """A placeholder in a body for the id of an object, which a request with `body` to `path` creates first."""

    path: str
    body: Body


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a request body: an example value, and the verdict on how this server treats it."""

    name: str
    value: Any
    verdict: str  # one of `VERDICTS`
    note: str = ""
    inside: str | None = None  # the object of the body that has the field

    def put_into(self, body: Body) -> dict[str, Any]:
        """Return a copy of `body` with the field added."""
        if self.inside is None:
            return {**body, self.name: self.value}
        return {**body, self.inside: {**body.get(self.inside, {}), self.name: self.value}}


@dataclass(frozen=True, slots=True)
class Call:
    """A test request: a route with a valid body, and the fields to add to that body one at a time.

    A route has several calls if some fields need others in the same body.
    """

    path: str  # as the route has it; `{name}` is the name of the object that `before` creates
    body: Body
    fields: Sequence[Field]
    before: Made | None = None


@dataclass(frozen=True, slots=True)
class System:
    """Another system with an HTTP API whose clients may use this server: its name, its routes and its fields."""

    name: str
    about: str
    calls: Sequence[Call]
    routes: Mapping[str, str]  # routes without a table of fields: "GET /path" -> a note
    refused_routes: Mapping[str, str]  # routes that answer 501 or do not exist -> the reason


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """A YAML loader that also reads the tag `!made`, as a `Made`."""


_Loader.add_constructor("!made", lambda loader, node: Made(**loader.construct_mapping(node, deep=True)))


def _read_fields(groups: Sequence[Mapping[str, Any]]) -> Iterator[Field]:
    for group in groups:
        [(verdict, values)] = [(name, group[name]) for name in VERDICTS if name in group]
        rest = {name: value for name, value in group.items() if name != verdict}
        for name, value in values.items():
            yield Field(name, value, verdict, **rest)


def _read_call(*, fields: Sequence[Mapping[str, Any]], before: Body | None = None, **rest: Any) -> Call:  # noqa: ANN401
    return Call(fields=tuple(_read_fields(fields)), before=None if before is None else Made(**before), **rest)


def _read_system(entry: Mapping[str, Any]) -> System:
    absent: Mapping[str, Any] = {"about": "", "calls": (), "routes": {}, "refused_routes": {}}
    whole = {**absent, **entry}
    return System(**{**whole, "calls": tuple(_read_call(**call) for call in whole["calls"])})


_TEXT = (Path(__file__).parent / "systems.yaml").read_text("utf-8")
SYSTEMS: Sequence[System] = tuple(map(_read_system, yaml.load(_TEXT, _Loader)))
"""All systems, in the order of the document."""


def document() -> str:
    """Return the text of docs/compatibility.md."""
    parts = [_HEAD, *(part for system in SYSTEMS for part in _system(system))]
    return "\n".join(parts)


def _system(system: System) -> Iterator[str]:
    yield f"## {system.name}\n"
    if system.about:
        yield f"{system.about}\n"
    for path, calls in groupby(system.calls, lambda each: each.path):
        yield f"### {system.name}: POST {path}\n"
        yield table(("fields", "here", ""), _rows([one for each in calls for one in each.fields])) + "\n"
    routes = [
        *((route, "answers", note) for route, note in system.routes.items()),
        *((route, "refused", note) for route, note in system.refused_routes.items()),
    ]
    if routes:
        yield f"### {system.name}: other routes\n"
        rows = [(f"`{route}`", verdict, note) for route, verdict, note in routes]
        yield table(("route", "here", ""), rows) + "\n"


def _rows(fields: Sequence[Field]) -> Iterator[tuple[str, str, str]]:
    """Yield a row of the document's table for each group of fields with the same verdict and note."""

    def said(one: Field) -> tuple[str, str]:
        return one.verdict, one.note

    order = list(dict.fromkeys(map(said, fields)))
    for (verdict, note), alike in groupby(sorted(fields, key=lambda one: order.index(said(one))), said):
        yield ", ".join(f"`{_name(one)}`" for one in alike), VERDICTS[verdict], note


def _name(one: Field) -> str:
    return one.name if one.inside is None else f"{one.inside}.{one.name}"
