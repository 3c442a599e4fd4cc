"""The options for what an answer may be: a grammar, a JSON schema or a regular expression."""

from __future__ import annotations

from pathlib import Path

import click

from rnn_engine.cli.option_groups import option_group
from rnn_engine.grammar import Grammar, written_grammar

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _make_grammar(grammar: Path | None, json_schema: Path | None, regex: str | None) -> Grammar | None:
    """Return the grammar that was given; None is any text."""
    given = [_read_grammar(grammar), _read_schema(json_schema), _make_regex(regex)]
    chosen = [one for one in given if one is not None]
    if len(chosen) > 1:
        raise click.UsageError(f"{chosen[0].field} and {chosen[1].field} exclude each other")
    return chosen[0] if chosen else None


grammar_options = option_group(
    "What the answer is",
    _make_grammar,
    click.option(
        "--grammar",
        type=_FILE,
        metavar="FILE",
        help="A grammar: llama.cpp's GBNF, llguidance's Lark or, in a file that ends in .kbnf, kbnf's.",
    ),
    click.option("--json-schema", type=_FILE, metavar="FILE", help="A JSON schema."),
    click.option("--regex", metavar="PATTERN", help="A regular expression that the whole answer matches."),
)


def _read_grammar(path: Path | None) -> Grammar | None:
    if path is None:
        return None
    text = path.read_text(encoding="utf-8")
    return Grammar("kbnf", text, "--grammar") if path.suffix == ".kbnf" else written_grammar(text, "--grammar")


def _read_schema(path: Path | None) -> Grammar | None:
    return None if path is None else Grammar("json_schema", path.read_text(encoding="utf-8"), "--json-schema")


def _make_regex(pattern: str | None) -> Grammar | None:
    return None if pattern is None else Grammar("regex", pattern, "--regex")
