"""Answers of a real engine follow JSON schemas; `python -m tools.schemas.engine` tries 300."""

from __future__ import annotations

import pytest

from tools.schemas.engine import answer_all


@pytest.mark.parametrize("model", ["demo", "random"])
async def test_streamed_answers_are_valid_or_cut(model: str) -> None:
    counts = await answer_all(model, "0", range(0, 300, 40), most=200)
    assert counts["valid"] + counts["cut"] == 8
    assert counts["valid"] >= 5
    assert counts["streamed in several pieces"] >= 2
