"""The table of results has one row for each tool."""

from __future__ import annotations

from tools.reliability_table import DOCUMENT, Row, with_row


def test_a_row_is_added_once_and_then_replaced() -> None:
    text = DOCUMENT.read_text("utf-8")
    first = Row("a test", "1", "0", "1 ms", "here", "`x`")
    second = Row("a test", "2", "0", "a|b", "here", "`x`")
    once = with_row(text, first)
    assert once.splitlines() == [*_until(once, first), str(first), *_after(text, once, first)]
    twice = with_row(once, second)
    assert twice.count("| a test |") == 1
    assert "| a test | 2 | 0 | a/b | here | `x` |\n" in twice
    assert len(twice.splitlines()) == len(text.splitlines()) + 1


def _until(text: str, row: Row) -> list[str]:
    return text.splitlines()[: text.splitlines().index(str(row))]


def _after(before: str, text: str, row: Row) -> list[str]:
    return before.splitlines()[len(_until(text, row)) :]
