"""`python -m tools.schema_suite`: run JSON-Schema-Test-Suite against the grammars of JSON schemas.

The tool prints tables: the schemas that are supported or refused, with the reasons, and the
instances that the grammars accept. A grammar fixes the order of an object's keys, so an instance counts as accepted if
any order of its keys is. Fails if a grammar accepts an instance that is not valid.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from rnn_engine.grammar import GrammarCompiler, GrammarError, json_grammar
from tests.support.grammars import byte_vocabulary, leads_to

SOURCE = "jsonschema-4.26.0"
"""The source on PyPI that contains the suite."""

_MOST_ORDERS = 120  # how many orders of an instance's keys are tried


@dataclass
class Outcome:
    """The counts for files of the suite: schemas, rejected schemas, and instances that the grammars accept."""

    counts: Counter[str] = field(default_factory=Counter)  # valid and invalid instances are those of supported schemas
    refused: Counter[str] = field(default_factory=Counter)  # reason -> schemas
    wrong: list[str] = field(default_factory=list)  # instances that are accepted although not valid

    def row(self, name: str) -> str:
        """Return the row of the table for a file of the suite, or for all."""
        counts = self.counts
        supported = f"{counts['schemas'] - self.refused.total()} of {counts['schemas']}"
        refused = f"{counts['invalid'] - len(self.wrong)} of {counts['invalid']}"
        return f"| {name} | {supported} | {counts['valid taken']} of {counts['valid']} | {refused} |"

    def add(self, other: Outcome) -> None:
        self.counts += other.counts
        self.refused += other.refused
        self.wrong += other.wrong


@click.command()
@click.option("--draft", default="draft2020-12", show_default=True)
def main(draft: str) -> None:
    """Print a table of the keywords of JSON schemas, and the reasons for which schemas are refused."""
    compiler, total = GrammarCompiler(byte_vocabulary), Outcome()
    click.echo("| file | schemas supported | valid instances taken | invalid ones refused |\n|---|---|---|---|")
    try:
        with tempfile.TemporaryDirectory() as folder:
            for path in sorted((download_suite(Path(folder)) / draft).glob("*.json")):
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
    raise SystemExit(bool(total.wrong))


def download_suite(folder: Path) -> Path:
    """Download the suite into `folder`, and return the folder of its drafts. Raises CalledProcessError."""
    command = [sys.executable, "-m", "pip", "download", SOURCE.replace("-", "=="), "--no-deps", "--dest", str(folder)]
    subprocess.run([*command, "--no-binary", "jsonschema"], check=True, stdout=sys.stderr)
    shutil.unpack_archive(folder / f"{SOURCE}.tar.gz", folder, filter="data")
    return folder / SOURCE / "json" / "tests"


def try_file(path: Path, compiler: GrammarCompiler) -> Outcome:
    """Compile the schemas of one file of the suite to grammars, match its instances, and return the counts."""
    outcome = Outcome()
    for group in json.loads(path.read_text("utf-8")):
        outcome.counts["schemas"] += 1
        try:
            grammar = compiler.compile(json_grammar(group["schema"])).result()
        except GrammarError as error:
            outcome.refused[_reason(str(error))] += 1
            continue
        for case in group["tests"]:
            is_taken = any(leads_to(grammar.start(), text) for text in spellings(case["data"]))
            outcome.counts["valid" if case["valid"] else "invalid"] += 1
            outcome.counts["valid taken"] += is_taken and case["valid"]
            if is_taken and not case["valid"]:
                outcome.wrong.append(f"{path.stem}: {group['description']}: {case['description']}: {case['data']}")
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
