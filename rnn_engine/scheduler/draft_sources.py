"""Predictions of a text's next tokens, for drafts: from its own repetitions, or from an equal earlier text.

The first kind is prompt look-up decoding: what followed the last tokens when they occurred before is predicted for as
long as it comes true. The second kind uses texts of earlier requests in the cache.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

MATCH = 3  # last tokens that are looked up
_WINDOW = 1 << 15  # last tokens of a prompt that are searched
_MOST_AT_ONCE = 1 << 10  # tokens that one call takes in, about 1 ms
_TOKEN_BITS = 21  # of each token in a key
_KEY_MASK = (1 << _TOKEN_BITS * MATCH) - 1
_EXPECTED = 0.6  # share of predicted tokens that come
_EXPECTED_EARLIER = 0.8  # the same for an earlier text
_PRIOR = 4.0  # weight of the expected share, in tokens
_MEMORY = 64.0  # tokens after which the counts are halved
_LEAST_CHANCE = 0.25  # that a token must have to be drafted


class Experience:
    """Counts of right and wrong predictions, in one text or in all texts."""

    def __init__(self, expected: float = _EXPECTED, of_all: Experience | None = None) -> None:
        """Start with no counts: the chance is that of `of_all`, which is updated too, or else `expected`."""
        self._expected = expected
        self._of_all = of_all
        self._seen = 0.0  # tokens that were predicted
        self._right = 0.0  # those of them that came

    def note(self, *, is_right: bool) -> None:
        """Count one prediction of a token. `is_right` says if it came true."""
        if self._seen >= _MEMORY:
            self._seen, self._right = self._seen / 2.0, self._right / 2.0
        self._seen += 1.0
        self._right += is_right
        if self._of_all is not None:
            self._of_all.note(is_right=is_right)

    @property
    def chance(self) -> float:
        """The estimated probability that a predicted token comes: the share so far, blended with the expected one."""
        expected = self._expected if self._of_all is None else self._of_all.chance
        return (self._right + _PRIOR * expected) / (self._seen + _PRIOR)


class Lookup:
    """Predicts a text's next tokens from an earlier occurrence of its last ones, and checks each token that comes."""

    is_over = False  # a text may repeat itself at any time

    def __init__(self, prompt: Sequence[int], of_all: Experience) -> None:
        """Start with the last tokens of `prompt`. `of_all` is the experience with all texts, which is updated."""
        self._text = array("I", prompt[-_WINDOW:])
        self._num_given = len(self._text)  # tokens of the prompt
        self._num_known = 0  # tokens of the text that can be found
        self._key = 0  # of the last tokens that are known
        self._latest: dict[int, int] = {}  # key -> the place after its last occurrence
        self._experience = Experience(of_all=of_all)
        self._place: int | None = None  # the token at this place is thought to come next

    def extend(self, generated: Sequence[int], first: int = 0) -> None:
        """Append `generated[first:]`, and take in some tokens that can't be found yet, such as those of the prompt."""
        self._text.extend(generated[first:])
        for end in range(self._num_known + 1, min(len(self._text), self._num_known + _MOST_AT_ONCE) + 1):
            self._take_in(end)

    @property
    def foretells(self) -> bool:
        """True if the next token can be predicted: the end of the text has occurred before, and all text is known."""
        return self._place is not None and self._num_known == len(self._text)

    def draft(self, count: int) -> list[int]:
        """Return a prediction of the next `count` tokens; an empty list if there is none."""
        text, place = self._text, self._place
        if place is None or not self.foretells:
            return []
        draft = text[place : place + count].tolist()
        while len(draft) < count:  # the text repeats what has just come, and goes on with the draft's own tokens
            draft.append(draft[len(draft) - (len(text) - place)])
        return draft

    @property
    def chance(self) -> float:
        """The estimated chance of a predicted token to be correct; 0 if it is too small for a draft."""
        chance = self._experience.chance
        return chance if chance >= _LEAST_CHANCE else 0.0

    def _take_in(self, end: int) -> None:
        """Let the token before `end` be found, record if it was predicted correctly, and look up what may follow."""
        token, place = self._text[end - 1], self._place
        if place is not None and end > self._num_given:
            is_right = self._text[place] == token
            self._experience.note(is_right=is_right)
            place = place + 1 if is_right else None
        else:
            place = None
        self._key = (self._key << _TOKEN_BITS | token) & _KEY_MASK
        if end >= MATCH:
            found = self._latest.get(self._key)
            self._latest[self._key] = end
            place = found if place is None else place
        self._place, self._num_known = place, end


# Drafts from an earlier equal text: the tokens that followed when the same tokens were last run from the same state.


class EarlierText:
    """Predicts the next tokens of a text from the text of an earlier request that began with the same tokens.

    The earlier text is looked up whenever there is no prediction: at first, at the end of the earlier text, and when
    this text departs from it. If a look-up finds nothing, nothing more will be predicted.
    """

    def __init__(self, find: Callable[[Sequence[int]], Sequence[int]]) -> None:
        """Start without a prediction. `find` returns what followed generated tokens in an earlier request, if known."""
        self._find = find
        self._ahead: Sequence[int] = ()
        self._place = 0  # in `_ahead`: the token there is thought to come next
        self.is_over = False  # nothing will be predicted any more
        self._experience = Experience(_EXPECTED_EARLIER)

    def extend(self, generated: Sequence[int], first: int) -> None:
        """Compare the new tokens `generated[first:]` with the prediction; look up another if it is used up or wrong."""
        if self.is_over:
            return
        for token in generated[first:]:
            if self._place == len(self._ahead):
                break
            is_right = token == self._ahead[self._place]
            self._experience.note(is_right=is_right)
            if not is_right:
                self._ahead, self._place = (), 0
                break
            self._place += 1
        if self._place == len(self._ahead):
            self._ahead, self._place = self._find(generated), 0
            self.is_over = not self._ahead

    @property
    def foretells(self) -> bool:
        return self._place < len(self._ahead)

    def draft(self, count: int) -> list[int]:
        """Return a prediction of at most `count` next tokens; an empty list if there is none."""
        return list(self._ahead[self._place : self._place + count])

    @property
    def chance(self) -> float:
        """The estimated chance of a predicted token to be correct."""
        return self._experience.chance
