"""Predictions of a text's next tokens, for drafts: from its own repetitions, or from an equal earlier text.

The first kind is prompt look-up decoding. As in LZ77, all places at which the last few tokens occurred before are
chained. The place that agrees with the end of the text over the most tokens is followed for as long as its continuation
predicts the text correctly. The second kind uses texts of earlier requests in the cache.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import numpy as np

MIN_MATCH = 3  # tokens that must agree at least
_LONGEST = 32  # tokens that are compared at most
_MOST_PLACES = 8  # places that are compared at most
_WINDOW = 1 << 15  # last tokens of a prompt that are searched
_MOST_AT_ONCE = 1 << 12  # tokens of a prompt that one call takes in, about 1 ms
_CLASSES = (3, 4, 6, 10)  # least lengths of matches that are judged together
_PRIOR = 4.0  # weight of the expected share of a match, in tokens
_MEMORY = 32.0  # tokens of a class in one text after which the counts are halved
_MEMORY_OF_ALL = 512.0  # and in all texts

_LEAST_CHANCE = 0.25  # that a token must have to be drafted

_TOKEN_BITS = 21  # of each token in a key; keys of different tokens may be equal, as places are compared anyway
_KEY_MASK = (1 << _TOKEN_BITS * MIN_MATCH) - 1


class Experience:
    """Counts of right and wrong predictions by the length of the match, in one text or in all texts."""

    def __init__(self, of_all: Experience | None = None) -> None:
        """Start with no counts; estimates begin at those of `of_all`, which is updated too, or else at little."""
        self._of_all = of_all
        self._memory = _MEMORY if of_all else _MEMORY_OF_ALL
        self._seen = [0.0] * len(_CLASSES)  # tokens that were predicted
        self._right = [0.0] * len(_CLASSES)  # those of them that came

    def note(self, length: int, *, is_right: bool) -> None:
        """Count one prediction of a token, made by a match of `length` tokens. `is_right` says if it came true."""
        which = _class_of(length)
        if self._seen[which] >= self._memory:
            self._seen[which] /= 2.0
            self._right[which] /= 2.0
        self._seen[which] += 1.0
        self._right[which] += is_right
        if self._of_all:
            self._of_all.note(length, is_right=is_right)

    def chance(self, length: int) -> float:
        """Return the estimated probability that the token predicted by a match of `length` tokens is correct.

        It is the share of correct predictions so far, blended with the expected share.
        """
        which = _class_of(length)
        expected = self._of_all.chance(length) if self._of_all else length / (length + 2.0)
        return (self._right[which] + _PRIOR * expected) / (self._seen[which] + _PRIOR)


class Lookup:
    """Predicts a text's next tokens from an earlier occurrence of its last ones, and checks each token that comes."""

    is_over = False  # a text may repeat itself at any time

    def __init__(self, prompt: Sequence[int], of_all: Experience | None = None) -> None:
        """Start with the last tokens of `prompt`; for `of_all` see `Experience`."""
        self._text = array("I", prompt[-_WINDOW:])
        self._num_known = 0  # tokens of the text that can be found
        self._num_given = len(self._text)  # tokens of the prompt
        self._key = 0  # of the last known tokens
        self._latest: dict[int, int] = {}  # key -> the place after its latest occurrence
        self._earlier = array("i")  # [num_known] the place after the occurrence before
        self._place: int | None = None  # the token at this place is thought to come next
        self._length = 0  # tokens before the place that agree with the end of the text
        self._experience = Experience(of_all)

    def extend(self, generated: Sequence[int], first: int = 0) -> None:
        """Append `generated[first:]`, and add a part of a long prompt to the search index."""
        self._text.extend(generated[first:])
        if self._num_known < self._num_given:
            self._take_in_prompt(min(self._num_given, self._num_known + _MOST_AT_ONCE))
        if self._num_known >= self._num_given:
            for token in self._text[self._num_known :]:
                self._take_in(token)

    @property
    def foretells(self) -> bool:
        """True if the next token can be predicted: the end of the text has occurred before, and all text is indexed."""
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

    def outlook(self, count: int) -> tuple[int, float]:
        """Return how many of the next `count` tokens are worth drafting, and the mean chance of each to be correct.

        The chance of a token holds if those before it are correct. The chances differ: a longer match may be more
        likely to continue, or less, as in a table with lines that begin alike. The mean is the geometric one.
        """
        length, product, likely = self._length, 1.0, 0
        while likely < count:
            chance = self._experience.chance(length + likely)
            if chance < _LEAST_CHANCE:
                break
            more = count - likely if length + likely >= _CLASSES[-1] else 1  # those of the last class are all alike
            product *= chance**more
            likely += more
        return likely, product ** (1.0 / max(likely, 1))

    def _take_in_prompt(self, end: int) -> None:
        """Add the prompt's tokens up to position `end` to the search index."""
        start = self._num_known
        tokens = np.zeros(end - start + MIN_MATCH - 1, np.uint64)  # with up to `MIN_MATCH - 1` tokens before `start`
        known = min(start, MIN_MATCH - 1)
        tokens[MIN_MATCH - 1 - known :] = self._text[start - known : end]
        keys = tokens[2:] | tokens[1:-1] << np.uint64(_TOKEN_BITS) | tokens[:-2] << np.uint64(2 * _TOKEN_BITS)
        keys &= np.uint64(_KEY_MASK)
        listed = keys.tolist()
        before = np.array([self._latest.get(key, -1) for key in listed], np.int32)
        order = np.argsort(keys, kind="stable")
        is_again = keys[order[1:]] == keys[order[:-1]]
        before[order[1:][is_again]] = order[:-1][is_again] + start + 1
        self._earlier.extend(before.tolist())
        self._latest.update(zip(listed, range(start + 1, end + 1), strict=True))
        self._key, self._num_known = listed[-1], end
        if end == self._num_given and end >= MIN_MATCH and before[-1] >= 0:
            self._find(before.item(-1))

    def _take_in(self, token: int) -> None:
        """Add the text's next token to the search index, and record if it was predicted correctly."""
        if self._place is not None:
            is_right = self._text[self._place] == token
            self._experience.note(self._length, is_right=is_right)
            self._place, self._length = (self._place + 1, self._length + 1) if is_right else (None, 0)
        self._key = (self._key << _TOKEN_BITS | token) & _KEY_MASK
        self._num_known = end = self._num_known + 1
        before = self._latest.get(self._key, -1) if end >= MIN_MATCH else -1
        self._latest[self._key] = end
        self._earlier.append(before)
        if self._place is None and before >= 0:
            self._find(before)

    def _find(self, place: int) -> None:
        """Find, from `place` back, where the most tokens before it match the text's last ones; predict from there."""
        text, end = self._text, self._num_known
        for _ in range(_MOST_PLACES):
            longest = self._length
            if place > longest and text[place - 1 - longest] == text[end - 1 - longest]:  # it may agree for longer
                length = self._agreement(place, end)
                if length > longest:
                    self._place, self._length = place, length
            place = self._earlier[place - 1]
            if place < 0 or self._length == _LONGEST:
                return

    def _agreement(self, place: int, end: int) -> int:
        text, length = self._text, 0
        while length < min(place, _LONGEST) and text[place - 1 - length] == text[end - 1 - length]:
            length += 1
        return length


def _class_of(length: int) -> int:
    return sum(length >= least for least in _CLASSES[1:])


# Drafts from an earlier equal text: the tokens that followed when the same tokens were last run from the same state.

_EARLIER_PRIOR = 4.0  # weight of the expected share of an earlier text, in tokens
_EXPECTED = 0.8  # share of an earlier text's tokens that come again


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
        self._seen = 0  # tokens that were predicted
        self._right = 0  # those of them that came

    def extend(self, generated: Sequence[int], first: int) -> None:
        """Compare the new tokens `generated[first:]` with the prediction; look up another if it is used up or wrong."""
        if self.is_over:
            return
        for token in generated[first:]:
            if self._place == len(self._ahead):
                break
            self._seen += 1
            if token != self._ahead[self._place]:
                self._ahead, self._place = (), 0
                break
            self._right += 1
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

    def outlook(self, count: int) -> tuple[int, float]:
        """Return the number of tokens to draft, which is `count`, and the estimated chance of each to be correct."""
        return count, self.chance

    @property
    def chance(self) -> float:
        """The estimated chance of a predicted token to be correct: the share so far, blended with a default."""
        return (self._right + _EARLIER_PRIOR * _EXPECTED) / (self._seen + _EARLIER_PRIOR)
