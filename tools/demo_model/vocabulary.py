"""`python -m tools.demo_model.vocabulary FILE`: write the tokenizer of the demo model.

It is a byte-level BPE with a vocabulary of the 256 bytes and the frequent words of the corpus.

There are no merges. A word of the vocabulary is one token; any other word is one token per letter. So a model can see
the letters of the words that it is asked to spell, and copy names that it has never seen. Words are counted in the
dialogues of the second phase, because the third one adds tools with random names. Token 0 ends a text.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.demo_model.corpus.mixture import SECOND_SHARES, dialogues
from tools.demo_model.corpus.texts import FACT_WORDS, WORDS

END = "<|end|>"
SEED = 1_000_003
SAMPLE = 60_000  # dialogues
MIN_COUNT = 25
MAX_SIZE = 3072

_PIECES = r"\n\n|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]|\s"


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _spelled(token: str) -> bool:
    """Return True if a word must be encoded as one token per letter, so that the model sees how it is spelt."""
    letters = token.removeprefix("Ġ")
    lower = letters.lower()
    return (lower in WORDS and lower not in FACT_WORDS) or (
        len(letters) > 1 and letters.isascii() and letters.isupper() and letters != "JSON"
    )


def _texts() -> Iterator[str]:
    for dialogue in itertools.islice(dialogues(SEED, SECOND_SHARES), SAMPLE):
        for turn in dialogue.turns:
            yield f"{turn.record}\n\nAssistant:"
            if " " in turn.answer:  # an answer of one word may be a reversed or spelled word
                yield f" {turn.answer}\n\n"
        if dialogue.system is not None:
            yield f"System: {dialogue.system}\n\n"


def frequent_words(texts: Iterable[str], min_count: int) -> list[str]:
    """Return the pieces that occur at least `min_count` times in `texts`, the most frequent first."""
    counter = Tokenizer(models.WordLevel(unk_token=None))
    counter.pre_tokenizer = _pre_tokenizer()
    counter.train_from_iterator(
        texts, trainers.WordLevelTrainer(vocab_size=MAX_SIZE, min_frequency=min_count, show_progress=False)
    )
    return [word for word, _ in sorted(counter.get_vocab().items(), key=lambda item: item[1])]


def make_tokenizer(words: Iterable[str], *, end_first: bool) -> Tokenizer:
    """Return a tokenizer whose entries are END, the bytes and `words`; END comes last unless `end_first`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = [*alphabet, *(word for word in words if word not in alphabet)]
    entries.insert(0 if end_first else len(entries), END)
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    return tokenizer


def build() -> Tokenizer:
    """Return a new tokenizer for the demo model. Every call builds the same one."""
    words = frequent_words(_texts(), MIN_COUNT)
    return make_tokenizer((word for word in words if not _spelled(word)), end_first=True)


if __name__ == "__main__":
    build().save(sys.argv[1])
