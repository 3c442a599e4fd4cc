"""Generate docs/compatibility.md from the tables of other systems' fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from tools.compatibility.systems import SYSTEMS, VERDICTS, Field, System

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"

_HEAD = """# Compatibility

How this server differs from other systems: for each of their routes and fields, whether it is the same, different or \
refused here, and why. [http-api.md](http-api.md) has all routes and fields of this server.

* **the same**: it has the same meaning as in the other system.
* **different**: it is accepted; the difference is described beside it.
* **no effect**: it is accepted, since it can't change an answer of this server.
* **refused**: an error names the field. Null is accepted everywhere, and so are most values that ask for nothing, \
such as `"best_of": 1`.

A field that is in none of these tables is refused, too; the error names it.

<!-- Made from tools/compatibility by `python -m tools.compatibility`; a test sends every field to a server. -->
"""


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
        yield _table(("fields", "here", ""), _rows([one for each in calls for one in each.fields]))
    routes = [
        *((route, "answers", note) for route, note in system.routes.items()),
        *((route, "refused", note) for route, note in system.refused_routes.items()),
    ]
    if routes:
        yield f"### {system.name}: other routes\n"
        yield _table(("route", "here", ""), [(f"`{route}`", verdict, note) for route, verdict, note in routes])


def _rows(fields: Sequence[Field]) -> Iterator[tuple[str, str, str]]:
    """Yield a row of the document's table for each group of fields with the same verdict and note."""

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
