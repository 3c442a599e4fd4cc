"""Shows, inside error messages, text that comes from a file: short, printable, and a few items of many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_MOST_ITEMS: Final = 6
_MOST_CHARACTERS: Final = 120


def show(text: str) -> str:
    """`text` cut to a length that a message can bear, and escaped where it would not print."""
    cut = text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
    return cut if cut.isprintable() else ascii(cut)


def show_all(items: Sequence[str]) -> str:
    """The first few of `items`, and how many more there are."""
    shown = "; ".join(show(item) for item in items[:_MOST_ITEMS])
    return shown if len(items) <= _MOST_ITEMS else f"{shown}; and {len(items) - _MOST_ITEMS} more"


def count(items: Sequence[str], noun: str) -> str:
    """How many there are, in words: "1 tensor", "2 tensors"."""
    return f"{len(items)} {noun}" if len(items) == 1 else f"{len(items)} {noun}s"
