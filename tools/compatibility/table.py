"""The words in which the systems' files say what becomes of a field or a route.

A field is a keyword with a value of the kind that clients send: `same(top_p=0.9)`. The tests send each to a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

Verdict: TypeAlias = Literal["same", "different", "no effect", "refused"]
Body: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kept:
    """Stands for the id of what a request has made."""

    path: str
    body: Body


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a body with a value that clients send, and what becomes of it."""

    name: str
    value: Any
    verdict: Verdict
    note: str = ""
    inside: str | None = None  # the object of the body in which it stands

    def put_into(self, body: Body) -> dict[str, Any]:
        """Return `body` with the field."""
        if self.inside is None:
            return {**body, self.name: self.value}
        return {**body, self.inside: {**body.get(self.inside, {}), self.name: self.value}}


Fields: TypeAlias = tuple[Field, ...]


def same(**fields: Any) -> Fields:  # noqa: ANN401
    """Fields that mean what they mean there."""
    return tuple(Field(name, value, "same") for name, value in fields.items())


def different(note: str, **fields: Any) -> Fields:  # noqa: ANN401
    """Fields that are understood and mean something else, or have another default."""
    return tuple(Field(name, value, "different", note) for name, value in fields.items())


def unused(note: str = "", **fields: Any) -> Fields:  # noqa: ANN401
    """Fields that are accepted and can't change an answer here."""
    return tuple(Field(name, value, "no effect", note) for name, value in fields.items())


def refused(note: str, **fields: Any) -> Fields:  # noqa: ANN401
    """Fields whose value is refused by name; null, and values without effect, may be accepted."""
    return tuple(Field(name, value, "refused", note) for name, value in fields.items())


def inside(name: str, *groups: Fields) -> Fields:
    """Return fields that stand in an object of the body."""
    return tuple(replace(one, inside=name) for group in groups for one in group)


@dataclass(frozen=True, slots=True)
class Call:
    """A route with a body that is accepted as it is, and fields that the system has. A route may have several,
    one after the other, where fields ask for others."""

    path: str  # as the route has it; `{name}` is that of what `before` makes
    body: Body
    fields: Fields
    before: Kept | None = None


def call(path: str, body: Body, *groups: Fields, before: Kept | None = None) -> Call:
    """Return a call with some groups of fields."""
    return Call(path, body, tuple(one for group in groups for one in group), before)


@dataclass(frozen=True, slots=True)
class System:
    """A system whose clients may come."""

    name: str
    about: str
    calls: Sequence[Call] = ()
    routes: Mapping[str, str] = field(default_factory=dict)
    """Routes without such a body, as "GET /path", and what is to be said of them."""

    refused_routes: Mapping[str, str] = field(default_factory=dict)
    """Routes that are answered with 501, or are not there, and why."""
