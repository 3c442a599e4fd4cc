"""The tokens that may end a text: a device that draws several tokens at a time stops at each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.requests import GenerateRequest
from rnn_engine.types import mask_words

_Text: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.intp]]

_MASKS = 256  # kept; requests that end in the same way share one


class Halts:
    """Makes masks of stop tokens and of those that may complete a stop string, a bit a token."""

    def __init__(self, vocab_size: int, token_bytes: Callable[[int], bytes]) -> None:
        text = cache(partial(_text_of, vocab_size, token_bytes))
        self._make = lru_cache(_MASKS)(partial(_make_mask, vocab_size, text))

    def of(self, request: GenerateRequest) -> NDArray[np.uint32]:
        """Return the mask [ceil(V / 32)] of `request`. Equal requests get the same array, which must not be changed."""
        return self._make(frozenset(request.stop_tokens), frozenset(stop[-1] for stop in request.stop_bytes))


def _make_mask(
    vocab_size: int, text: Callable[[], _Text], stop_tokens: frozenset[int], last_bytes: frozenset[int]
) -> NDArray[np.uint32]:
    """A stop string ends inside a token that has its last byte."""
    halts = np.zeros(32 * mask_words(vocab_size), np.bool_)
    halts[list(stop_tokens)] = True
    for byte in last_bytes:
        data, owners = text()
        halts[owners[data == byte]] = True
    return np.packbits(halts, bitorder="little").view("<u4").astype(np.uint32)


def _text_of(vocab_size: int, token_bytes: Callable[[int], bytes]) -> _Text:
    """The bytes of all tokens in a row, and to which token each belongs."""
    pieces = [token_bytes(token) for token in range(vocab_size)]
    owners = np.repeat(np.arange(vocab_size), [len(piece) for piece in pieces])
    return np.frombuffer(b"".join(pieces), np.uint8), owners
