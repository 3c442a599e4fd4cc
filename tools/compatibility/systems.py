"""The table of other systems' routes and fields, read from systems.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

Body: TypeAlias = Mapping[str, Any]

VERDICTS = {"same": "the same", "different": "different", "no_effect": "no effect", "refused": "refused"}


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
