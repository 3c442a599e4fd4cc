"""Drafts from an earlier text, and how many of its tokens are trusted."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_engine.scheduler.draft_sources import EarlierText


class Texts:
    """Earlier texts, with a count of the calls for them."""

    def __init__(self, *texts: Sequence[int]) -> None:
        self.texts = texts
        self.asked = 0

    def find(self, generated: Sequence[int]) -> Sequence[int]:
        self.asked += 1
        known = list(generated)
        longer = (list(text[len(known) :]) for text in self.texts if list(text[: len(known)]) == known)
        return next((rest for rest in longer if rest), [])


def follow(earlier: EarlierText, text: Sequence[int]) -> list[list[int]]:
    """Return the drafts of two tokens before each token of a text and after the last."""
    drafts = []
    for count in range(len(text) + 1):
        earlier.extend(text[:count], max(count - 1, 0))
        drafts.append(earlier.draft(2))
    return drafts


def test_a_text_that_comes_again_is_asked_for_once() -> None:
    texts = Texts([1, 2, 3, 4])
    earlier = EarlierText(texts.find)
    assert follow(earlier, [1, 2, 3]) == [[1, 2], [2, 3], [3, 4], [4]]
    assert texts.asked == 1


def test_where_it_leaves_one_text_it_follows_another() -> None:
    texts = Texts([1, 2, 3, 4], [1, 2, 5, 6, 7])
    earlier = EarlierText(texts.find)
    assert follow(earlier, [1, 2, 5]) == [[1, 2], [2, 3], [3, 4], [6, 7]]
    assert texts.asked == 2


def test_where_no_text_goes_on_nothing_is_asked_any_more() -> None:
    texts = Texts([1, 2])
    earlier = EarlierText(texts.find)
    assert follow(earlier, [1, 2, 3, 4, 5]) == [[1, 2], [2], [], [], [], []]
    assert texts.asked == 2
    nothing = Texts()
    assert follow(EarlierText(nothing.find), [1, 2, 3]) == [[], [], [], []]
    assert nothing.asked == 1


def test_tokens_that_come_together_are_followed_as_one_by_one() -> None:
    texts = Texts([1, 2, 3, 4], [1, 5, 6])
    earlier = EarlierText(texts.find)
    earlier.extend([], 0)
    earlier.extend([1, 5], 0)
    assert earlier.draft(3) == [6]
    alone = EarlierText(texts.find)
    follow(alone, [1, 5])
    assert alone.chance == earlier.chance


def test_the_chance_rises_with_what_came_again_and_falls_with_the_rest() -> None:
    again = EarlierText(Texts(range(50)).find)
    first = again.chance
    follow(again, range(40))
    assert first < again.chance < 1.0
    left = EarlierText(Texts(range(50), [0, 9, 9, 9]).find)
    follow(left, [0, 9, 8])
    assert left.chance < first
