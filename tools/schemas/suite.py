"""`python -m tools.schemas.suite`: run JSON-Schema-Test-Suite against the grammars of JSON schemas.

The suite is part of the source of the jsonschema package on PyPI. The tool counts the schemas that are supported or
refused, with the reasons, and the instances that the grammars accept. A grammar fixes the order of an object's keys, so
an instance counts as accepted if any order of its keys is. Fails if a grammar accepts an instance that is not valid.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from rnn_engine.grammar import GrammarCompiler, GrammarError, json_grammar
from tests.support.grammars import byte_vocabulary, leads_to
from tools.package_source import cache_folder, fetch_source

VERSION = "4.26.0"
"""The version of jsonschema whose suite the table in the user guide is about."""

_PACKAGE = "jsonschema"
_MOST_ORDERS = 120  # how many orders of an instance's keys are tried


@dataclass
class Outcome:
    """The counts for one file of the suite: schemas, rejected schemas, and instances that the grammars accept."""

    schemas: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # reason -> schemas
    valid: int = 0  # instances of schemas that are supported
    valid_taken: int = 0
    invalid: int = 0
    wrong: list[str] = field(default_factory=list)  # instances that are accepted although not valid
    left_out: list[str] = field(default_factory=list)  # valid instances that are not accepted

    def row(self, name: str) -> str:
        supported = self.schemas - self.refused.total()
        refused = f"{self.invalid - len(self.wrong)} of {self.invalid}"
        return f"| {name} | {supported} of {self.schemas} | {self.valid_taken} of {self.valid} | {refused} |"

    def add(self, other: Outcome) -> None:
        self.schemas += other.schemas
        self.refused += other.refused
        self.valid += other.valid
        self.valid_taken += other.valid_taken
        self.invalid += other.invalid
        self.wrong += other.wrong
        self.left_out += other.left_out


@click.command()
@click.option("--draft", default="draft2020-12", show_default=True)
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Folder of the suite, which is downloaded if it is missing."
)
@click.option("--details", is_flag=True, help="Also print each valid instance that is refused.")
def main(draft: str, folder: Path | None, details: bool) -> None:
    """Print a table of the keywords of JSON schemas, and the reasons for which schemas are refused."""
    folder = folder or cache_folder(_PACKAGE, VERSION)
    fetch_source(_PACKAGE, VERSION, "json/", ("tests/",), folder)
    compiler = GrammarCompiler(byte_vocabulary)
    total = Outcome()
    click.echo("| file | schemas supported | valid instances taken | invalid ones refused |\n|---|---|---|---|")
    try:
        for path in sorted((folder / "tests" / draft).glob("*.json")):
            outcome = try_file(path, compiler)
            click.echo(outcome.row(path.stem))
            total.add(outcome)
    finally:
        compiler.close()
    click.echo(total.row("all"))
    click.echo("\n| refused because | schemas |\n|---|---|")
    for reason, count in total.refused.most_common():
        click.echo(f"| {reason} | {count} |")
    for line in total.wrong:
        click.echo(f"accepted although invalid: {line}")
    for line in total.left_out if details else ():
        click.echo(f"refused although valid: {line}")
    if total.wrong:
        raise SystemExit(1)


def try_file(path: Path, compiler: GrammarCompiler) -> Outcome:
    """Compile the schemas of one file of the suite to grammars, match its instances, and return the counts."""
    outcome = Outcome()
    for group in json.loads(path.read_text("utf-8")):
        outcome.schemas += 1
        try:
            grammar = compiler.compile(json_grammar(group["schema"])).result()
        except GrammarError as error:
            outcome.refused[_reason(str(error))] += 1
            continue
        for case in group["tests"]:
            is_taken = any(leads_to(grammar.start(), text) for text in spellings(case["data"]))
            line = f"{path.stem}: {group['description']}: {case['description']}: {json.dumps(case['data'])[:100]}"
            if case["valid"]:
                outcome.valid += 1
                outcome.valid_taken += is_taken
                outcome.left_out += [] if is_taken else [line]
            else:
                outcome.invalid += 1
                outcome.wrong += [line] if is_taken else []
    return outcome


def spellings(value: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield JSON texts of `value` with the keys of its objects in different orders, up to a limit."""
    for ordered in itertools.islice(_orders(value), _MOST_ORDERS):
        yield json.dumps(ordered, ensure_ascii=False)


def _orders(value: Any) -> Iterator[Any]:  # noqa: ANN401
    if isinstance(value, dict):
        for keys in itertools.permutations(value):
            for values in itertools.product(*(list(_orders(value[key])) for key in keys)):
                yield dict(zip(keys, values, strict=True))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*(list(_orders(each)) for each in value)))
    else:
        yield value


def _reason(error: str) -> str:
    """Return the first line of an error message, with the position in the schema removed."""
    return re.sub(r" \(at [^)]*\)$", "", error.splitlines()[0])[:100].replace("|", "\\|")


if __name__ == "__main__":
    main()
