"""Pack dialogues into rows of tokens for training, with the starts of documents and the tokens to learn.

Needs nothing but numpy and tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tools.demo_model.corpus.dialogue import Dialogue

Encode: TypeAlias = Callable[[str], list[int]]

IGNORED = -100
END = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows with packed documents. END is the target of a document's last token; the rest is padded and ignored."""

    tokens: NDArray[np.int64]  # [B, T]
    starts: NDArray[np.uint8]  # [B, T] 1 at the first token of a document
    targets: NDArray[np.int64]  # [B, T] the next token, or IGNORED

    @property
    def num_learnt(self) -> int:
        """The number of tokens that the loss counts."""
        return int((self.targets != IGNORED).sum())


@dataclass(frozen=True, slots=True)
class Document:
    tokens: list[int]
    learnt: list[bool]


def document(dialogue: Dialogue, encode: Encode) -> Document:
    """Return a dialogue as tokens, with a flag for each token: True if the model has to learn to write it."""
    tokens: list[int] = []
    learnt: list[bool] = []
    for text, wanted in dialogue.parts():
        ids = encode(text)
        tokens += ids
        learnt += [wanted] * len(ids)
    return Document(tokens, learnt)


def plain_encoder(tokenizer: Tokenizer) -> Encode:
    """Return a function that encodes a text as token ids, without special tokens."""
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


def pack(documents: Iterable[Document], rows: int, length: int) -> Iterator[Rows]:
    """Yield batches of `rows` rows of `length` tokens, filled with whole documents. Longer documents are skipped."""
    batch = _empty(rows, length)
    row = at = 0
    for doc in documents:
        size = len(doc.tokens)
        if size > length:
            continue
        if at + size > length:
            row, at = row + 1, 0
            if row == rows:
                yield batch
                batch, row = _empty(rows, length), 0
        span = slice(at, at + size)
        batch.tokens[row, span] = doc.tokens
        batch.starts[row, at] = 1
        following = np.array([*doc.tokens[1:], END])
        batch.targets[row, span] = np.where([*doc.learnt[1:], True], following, IGNORED)
        at += size


def _empty(rows: int, length: int) -> Rows:
    return Rows(
        np.full((rows, length), END, np.int64),
        np.zeros((rows, length), np.uint8),
        np.full((rows, length), IGNORED, np.int64),
    )
