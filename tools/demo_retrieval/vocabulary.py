"""The tokenizer of the demo pair: the bytes, the words of the training texts, and last the end of a text.

A word of the vocabulary is one token; any other word is one token per letter. In training some known words are spelt,
so that the letters are learnt, too.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection

from tokenizers import Tokenizer

from tools.demo_model.vocabulary import frequent_words, make_tokenizer
from tools.demo_retrieval.corpus import training_texts

_SEED, _SAMPLE = 1_000_003, 60_000
_MIN_COUNT = 10


def build() -> Tokenizer:
    """Return a new tokenizer for the demo pair. Every call builds the same one."""
    texts = itertools.islice(training_texts(_SEED), _SAMPLE)
    return make_tokenizer(frequent_words(texts, _MIN_COUNT), end_first=False)


class Encoder:
    """Encode texts as the engine does, ending with the token that ends a text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        entries = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        self._end = len(entries) - 1
        letters = {entry: index for entry, index in entries if len(entry) == 1}
        self._spelt = [[letters[letter] for letter in entry] for entry, index in entries if index != self._end]

    def some_words(self, rng: random.Random, share: float) -> frozenset[int]:
        """Return a `share` of the words, to be spelt."""
        return frozenset(index for index in range(self._end) if rng.random() < share)

    def __call__(self, text: str, spelt: Collection[int] = (), *, ends: bool = True) -> list[int]:
        """Return the tokens of a text, without the last one unless it `ends`. The words `spelt` are their letters."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        tokens = [letter for token in tokens for letter in (self._spelt[token] if token in spelt else [token])]
        return [*tokens, self._end] if ends else tokens
