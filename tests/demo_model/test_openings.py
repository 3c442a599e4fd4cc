"""The held-out openings: the list is right, and answers are judged by it."""

from __future__ import annotations

import pytest

from rnn_engine import LLM, SamplingParams
from tools.demo_model.openings import Opening, converse, load_openings, report

OPENINGS = load_openings()


def test_there_are_two_hundred_and_more_that_differ() -> None:
    assert len({opening.turns for opening in OPENINGS}) == len(OPENINGS) >= 200
    assert sum(not opening.is_short for opening in OPENINGS) > 100


@pytest.mark.parametrize(
    ("typed", "answer", "sensible"),
    [
        ("Spell hello", "h-e-l-l-o", True),
        ("Spell hello", "C-a-d-i-n-a", False),
        ("How much is 123 + 456?", "123 + 456 = 579", True),
        ("How much is 123 + 456?", "59", False),
        ("who made you", "The makers of rnn-engine.", True),
        ("who made you", "I was made by OpenAI, for rnn-engine.", False),
        ("haiku please", "An old pond\na frog leaps in\nwater", True),
        ("haiku please", "Sorry, I don't know that.", False),
        ("what time is it", "Sorry, I don't know that.", False),
        ("what time is it", "Sorry, I have no clock. Try a sum.", True),
        ("tell me a joke", "", False),
        ("tell me a joke", "Why? " + "Because of that. " * 40, False),
    ],
)
def test_an_answer_is_judged_by_its_rubric(typed: str, answer: str, sensible: bool) -> None:
    [opening] = [opening for opening in OPENINGS if opening.turns == (typed,)]
    assert (opening.fault(answer) is None) == sensible


FIRST_IMPRESSIONS = (
    ("hello",),
    ("who are you",),
    ("What is RWKV?",),
    ("what can you do",),
    ("what is the capital of france",),
    ("What is the capital of France?", "And of Spain?"),
    ("I feel sad today",),
    ("tell me a joke",),
    ("haiku please",),
    ("write a python function that sorts a list",),
    ("你好",),
    ("bye",),
)


def test_the_model_that_ships_makes_a_good_first_impression() -> None:
    openings = [opening for opening in OPENINGS if opening.turns in FIRST_IMPRESSIONS]
    with LLM(device="cpu") as llm:
        answers = converse(llm, openings, SamplingParams(temperature=0.0, max_tokens=240))
    assert [len(turns) for turns in answers] == [len(opening.turns) for opening in openings]
    faults = {opening.turns: opening.fault(turns[-1]) for opening, turns in zip(openings, answers, strict=True)}
    assert len(faults) == len(FIRST_IMPRESSIONS)
    assert not any(faults.values()), faults


def test_the_report_tells_what_is_wrong_and_how_often() -> None:
    openings = [Opening("sums", ("2+2",), ("4",)), Opening("sums", ("what is two and two",), ("4",))]
    text = report(openings, [["4"], ["5"]])
    assert "sums: what is two and two -> '5': does not match 4" in text
    assert "| sums | 50.0 % | 2 |" in text
    assert "| held out | 0.0 % | 1 |" in text
    assert "2+2" not in text
