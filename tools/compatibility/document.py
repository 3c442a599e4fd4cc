"""docs/compatibility.md, made from the systems' tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from tools.compatibility.systems import SYSTEMS, VERDICTS, Field, System

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"

_HEAD = """# Compatibility

What clients of other systems meet here: for each route and field whether it is the same, different or refused, and \
why. [http-api.md](http-api.md) has all routes and fields of this server.

* **the same**: it means what it means there.
* **different**: it is understood; what is different stands beside it.
* **no effect**: it is accepted, since it can't change an answer of this server.
* **refused**: an error names the field. Null is accepted everywhere, and so are most values that ask for nothing, \
such as `"best_of": 1`.

A field that is in no table here is refused by name, too.

<!-- Made from tools/compatibility by `python -m tools.compatibility`; a test sends every field to a server. -->
"""


def document() -> str:
    """Return the text of the document."""
    parts = [_HEAD, *(part for system in SYSTEMS for part in _system(system))]
    return "\n".join(parts)


def _system(system: System) -> Iterator[str]:
    yield f"## {system.name}\n"
    if system.about:
        yield f"{system.about}\n"
    for path, calls in groupby(system.calls, lambda each: each.path):
        yield f"### {system.name}: POST {path}\n"
        yield _table(("fields", "here", ""), _rows([one for each in calls for one in each.fields]))
    routes = [
        *((route, "answers", note) for route, note in system.routes.items()),
        *((route, "refused", note) for route, note in system.refused_routes.items()),
    ]
    if routes:
        yield f"### {system.name}: other routes\n"
        yield _table(("route", "here", ""), [(f"`{route}`", verdict, note) for route, verdict, note in routes])


def _rows(fields: Sequence[Field]) -> Iterator[tuple[str, str, str]]:
    """Yield a line for the fields of which the same is said."""

    def said(one: Field) -> tuple[str, str]:
        return one.verdict, one.note

    order = list(dict.fromkeys(map(said, fields)))
    for (verdict, note), alike in groupby(sorted(fields, key=lambda one: order.index(said(one))), said):
        yield ", ".join(f"`{_name(one)}`" for one in alike), VERDICTS[verdict], note


def _name(one: Field) -> str:
    return one.name if one.inside is None else f"{one.inside}.{one.name}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
