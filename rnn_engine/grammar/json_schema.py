"""JSON schemas before they are compiled: how the JSON is spaced, and where in a schema an error is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final, TypeAlias

from rnn_engine.grammar.grammar import GrammarError

Schema: TypeAlias = Mapping[str, object] | bool

_SPACING: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MOST_LEVELS: Final = 100  # of objects and lists in each other
_MOST_INTEGER: Final = 2**53  # up to which every integer is a float
_MOST_TRIES: Final = 100  # parts of a schema that are compiled to find an error


def load_schema(text: str) -> Schema:
    """Return the JSON schema in `text`. Raises GrammarError where it is none, or refers to another document."""
    try:
        schema = json.loads(text, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it is no JSON: {error or 'too deeply nested'}") from None
    if not isinstance(schema, dict | bool):
        raise GrammarError("expected an object, true or false")
    for place, part in _parts(schema):
        if place.count("/") > _MOST_LEVELS:
            raise GrammarError(f"it is too deeply nested; at most {_MOST_LEVELS} levels are allowed")
        reference = part.get("$ref") if isinstance(part, Mapping) else None
        if isinstance(reference, str) and not reference.startswith("#"):
            raise GrammarError(f"$ref {reference[:80]!r} leads out of the schema, and nothing is fetched (at {place})")
    return schema


def _number(text: str) -> float | int:
    """Return a number with a point or an exponent; as an integer where it is one, for which llguidance asks."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= _MOST_INTEGER else value


def with_spacing(schema: Schema) -> Schema:
    """Return `schema` with what llguidance is told: JSON on one line, spaced as Python's `json.dumps` does.

    What the schema itself says of that, under `x-guidance`, is kept.
    """
    if schema is False:
        return schema
    own = {} if schema is True else dict(schema)
    said = own.get("x-guidance")
    return {**own, "x-guidance": {**_SPACING, **(said if isinstance(said, Mapping) else {})}}


def error_place(schema: Schema, fails_alike: Callable[[Schema], bool]) -> str:
    """Return the JSON pointer of the smallest part of `schema` that fails as the whole does."""
    definitions = (
        {} if isinstance(schema, bool) else {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    )
    found = "#"
    parts = ((place, part) for place, part in _parts(schema) if isinstance(part, Mapping))
    for place, part in islice(parts, _MOST_TRIES):
        if place.startswith(found) and fails_alike({**definitions, **part}):
            found = place
    return found


def _parts(schema: object) -> Iterator[tuple[str, object]]:
    """Yield every object and list in `schema`, outer ones first, with JSON pointers."""
    unseen: list[tuple[str, object]] = [("#", schema)]
    while unseen:
        place, part = unseen.pop()
        yield place, part
        if isinstance(part, Mapping):
            children: list[tuple[object, object]] = list(part.items())
        elif isinstance(part, list):
            children = list(enumerate(part))
        else:
            continue
        unseen.extend((f"{place}/{_escaped(str(key))}", child) for key, child in reversed(children))


def _escaped(key: str) -> str:
    """Return a key as JSON pointers have it."""
    return key.replace("~", "~0").replace("/", "~1")
