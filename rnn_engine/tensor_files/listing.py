"""Format text that comes from a file for error messages: short, printable, and a few items of many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_MOST_ITEMS: Final = 6
_MOST_CHARACTERS: Final = 120


def show(text: str) -> str:
    """Cut `text` to 120 characters, and escape it where it would not print."""
    cut = text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
    return cut if cut.isprintable() else ascii(cut)


def show_all(items: Sequence[str]) -> str:
    """List the first few of `items`, and say how many more there are."""
    shown = "; ".join(show(item) for item in items[:_MOST_ITEMS])
    return shown if len(items) <= _MOST_ITEMS else f"{shown}; and {len(items) - _MOST_ITEMS} more"


def count(items: Sequence[str], noun: str) -> str:
    """Format the number of items with their noun: "1 tensor", "2 tensors"."""
    return f"{len(items)} {noun}" if len(items) == 1 else f"{len(items)} {noun}s"
