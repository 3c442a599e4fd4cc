"""Generate docs/compatibility.md from systems.yaml, the table of other systems' routes and fields."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
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

How this server differs from other systems. A field that is not listed is the same as in the other system if the page \
`/docs` of a server has it, or it is accepted and can't change an answer.

* **different**: it is accepted; the difference is described beside it.
* **no effect**: it is accepted, since it can't change an answer of this server.
* **left out**: it is ignored, and the answer's header `X-Left-Out` lists it, since it does not change the text that \
the model writes. A server with `--strict` refuses it. Unknown fields are left out, too, unless they look misspelled.
* **refused**: an error names the field, since it would change the answer. Null is accepted everywhere, and so are \
most values that ask for nothing, such as `"best_of": 1`.

<!-- Made from tools/compatibility by `python -m tools.compatibility`; a test sends every field to a server. -->
"""

_SHARED_BY = 3  # differences of this many systems stand in one table for all


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
    shared: dict[tuple[str, str], list[System]] = {}
    for system in SYSTEMS:
        for verdict, note in _differences(system):
            if note:
                shared.setdefault((verdict, note), []).append(system)
    shared = {said: systems for said, systems in shared.items() if len(systems) >= _SHARED_BY}
    rows = [
        (", ".join(_names(systems, said)), VERDICTS[said[0]], said[1], ", ".join(one.name for one in systems))
        for said, systems in shared.items()
    ]
    parts = [_HEAD, "## Several systems\n", table(("fields", "here", "", "systems"), rows) + "\n"]
    return "\n".join([*parts, *(part for system in SYSTEMS for part in _system(system, shared))])


def _names(systems: Sequence[System], said: tuple[str, str]) -> Iterable[str]:
    """Return the fields of which a verdict and a note are true in any of `systems`, each once."""
    return dict.fromkeys(name.partition(" of ")[0] for one in systems for name in _differences(one)[said])


def _system(system: System, shared: Container[tuple[str, str]]) -> Iterator[str]:
    yield f"## {system.name}\n"
    if system.about:
        yield f"{system.about}\n"
    paths = [f"POST {path}" for path in dict.fromkeys(each.path for each in system.calls)]
    plain = [route for route, note in system.routes.items() if not note]
    if paths or plain:
        yield f"Routes: {', '.join(f'`{route}`' for route in (*paths, *plain))}.\n"
    found = {said: names for said, names in _differences(system).items() if said not in shared}
    rows = [(", ".join(names), VERDICTS[verdict], note) for (verdict, note), names in found.items()]
    rows += [(f"`{route}`", "answers", note) for route, note in system.routes.items() if note]
    for note, routes in groupby(system.refused_routes.items(), lambda each: each[1]):
        rows.append((", ".join(f"`{route}`" for route, _ in routes), "refused", note))
    if rows:
        yield table(("field or route", "here", ""), rows) + "\n"


def _differences(system: System) -> Mapping[tuple[str, str], list[str]]:
    """Return the fields that need a word, by verdict and note. A route stands beside fields that vary by route."""
    said: dict[str, dict[tuple[str, str], list[str]]] = {}
    for call in system.calls:
        for one in call.fields:
            name = one.name if one.inside is None else f"{one.inside}.{one.name}"
            said.setdefault(name, {}).setdefault((one.verdict, one.note), []).append(call.path)
    found: dict[tuple[str, str], list[str]] = {}
    for name, verdicts in said.items():
        for key, paths in verdicts.items():
            place = f" of {', '.join(f'`{path}`' for path in dict.fromkeys(paths))}" if len(verdicts) > 1 else ""
            found.setdefault(key, []).append(f"`{name}`{place}")
    return {key: names for key, names in found.items() if key not in (("same", ""), ("no_effect", ""))}
