"""Drafts from repeats within a text, and how many of their tokens are trusted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.scheduler.draft_sources import MATCH, Experience, Lookup

texts = st.lists(st.integers(0, 3), max_size=60)


def lookup_of(prompt: list[int], generated: list[int]) -> Lookup:
    lookup = Lookup(prompt, Experience())
    lookup.extend([])
    for token in generated:
        lookup.extend([token])
    return lookup


@given(texts, texts)
def test_a_draft_follows_what_the_end_of_the_text_repeats(prompt: list[int], generated: list[int]) -> None:
    text = prompt + generated
    draft = lookup_of(prompt, generated).draft(5)
    end = text[-MATCH:]
    followed = text + draft
    places = [place for place in range(MATCH, len(text)) if text[place - MATCH : place] == end]
    assert bool(draft) == (len(text) >= MATCH and bool(places))
    assert not draft or any(followed[place : place + 5] == draft for place in places)


@given(texts, texts)
def test_it_is_all_the_same_in_how_many_parts_a_text_comes(prompt: list[int], generated: list[int]) -> None:
    one, other = lookup_of(prompt, generated), Lookup(prompt, Experience())
    other.extend(generated)
    assert (one.draft(4), one.chance) == (other.draft(4), other.chance)


def test_of_places_that_agree_the_latest_is_followed() -> None:
    assert lookup_of([1, 2, 3, 4, 1, 2, 3, 5, 1, 2], [3]).draft(1) == [5]


def test_a_draft_goes_on_with_itself() -> None:
    assert lookup_of([7, 1, 2, 1, 2], [1]).draft(6) == [2, 1, 2, 1, 2, 1]


def test_what_a_place_foretold_wrongly_is_not_followed_any_more() -> None:
    lookup = lookup_of([1, 2, 3, 4, 5, 6, 0, 1, 2], [3])
    assert lookup.draft(2) == [4, 5]
    lookup.extend([9])
    assert lookup.draft(2) == []


def test_the_chance_rises_with_what_was_foretold_rightly_and_falls_with_the_rest() -> None:
    text = list(range(100))
    right = lookup_of([*text, 200, 0, 1], [2])
    first = right.chance
    right.extend(text[3:40])
    assert 0 < first < right.chance < 1.0
    wrong = lookup_of(text, [])
    chances = []
    for start in range(0, 90, 5):
        wrong.extend([200, *text[start : start + 3]])
        chances.append(wrong.chance)
        wrong.extend([201])
    assert chances[1] < chances[0]
    assert chances[-1] == 0.0  # it is not likely enough any more


def test_a_long_prompt_is_taken_in_bit_by_bit_and_its_beginning_not_at_all() -> None:
    lookup = Lookup([*range(100_000), 99_000, 99_001, 99_002], Experience())
    calls = 0
    while not (draft := lookup.draft(2)):
        lookup.extend([])
        calls += 1
        assert calls < 100
    assert draft == [99_003, 99_004]
    assert calls > 5
    lookup.extend([5, 10, 11, 12])
    assert lookup.draft(2) == []


def test_a_new_text_is_trusted_as_far_as_others_were() -> None:
    of_all = Experience()
    first = Lookup([1, 2, 3, 4, 1, 2, 3], of_all)
    first.extend([])
    assert first.chance > 0.0
    text: list[int] = []
    for start in range(100, 130):  # the tokens after 1, 2, 3 are never the same
        text += [start, 1, 2, 3]
        first.extend(text, len(text) - 4)
    second = Lookup([1, 2, 3, 4, 1, 2, 3], of_all)
    second.extend([])
    assert first.chance == second.chance == 0.0
