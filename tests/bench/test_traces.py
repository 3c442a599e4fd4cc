"""The benchmark of cached states on traces of prompts."""

from __future__ import annotations

import itertools

import pytest

from tools.bench.traces import TRACES, Writer, make_prompt, run_trace


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_is_the_same_each_time_and_its_positions_lie_inside(name: str) -> None:
    first, second = (list(itertools.islice(TRACES[name](Writer(3)), 20)) for _ in range(2))
    assert first == second
    for prompt in first:
        positions = (*prompt.turn_positions, *prompt.checkpoint_positions)
        assert all(0 < position <= len(prompt.prompt) for position in positions)


def test_what_is_asked_again_is_saved_while_memory_has_room() -> None:
    text = Writer(1).text(300, 300)
    asked = [make_prompt(tokens) for tokens in (text, [*text, 5], Writer(2).text(300, 300), [*text, 6])]
    roomy, none = run_trace(iter(asked), states=50, step_tokens=64), run_trace(iter(asked), states=0, step_tokens=64)
    assert roomy["tokens run, %"] == pytest.approx(100 * (300 + 1 + 300 + 1) / 1202)
    assert roomy["prompts that save nothing, %"] == 50
    assert none["tokens run, %"] == 100
    assert none["states kept a prompt"] == 0
    assert none["modelled ms a prompt"] > roomy["modelled ms a prompt"]
