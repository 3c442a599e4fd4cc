"""Texts under a grammar: a check of given texts, and random texts that it allows."""

from __future__ import annotations

import random
from functools import cache

from rnn_engine.grammar import Grammar, Vocabulary
from rnn_engine.grammar.compiled import compile_grammar
from rnn_engine.sampling.masks import TokenMask, allowed_tokens
from tests.support.byte_tokenizer import ByteTokenizer

END = 0


@cache
def byte_vocabulary() -> Vocabulary:
    """Return the vocabulary in which token b + 1 stands for byte b, and token 0 for the end."""
    return Vocabulary.of(ByteTokenizer(), ByteTokenizer().size)


def takes(grammar: Grammar, text: str, vocabulary: Vocabulary | None = None) -> bool:
    """Return True if `grammar` allows `text` and may end there."""
    vocabulary = vocabulary or byte_vocabulary()
    return leads_to(compile_grammar(grammar, vocabulary).start(), text, vocabulary)


def leads_to(mask: TokenMask, text: str, vocabulary: Vocabulary | None = None) -> bool:
    """Return True if `mask` allows `text` and may end there. The mask must be at its start."""
    vocabulary = vocabulary or byte_vocabulary()
    for token in vocabulary.encode(text):
        if mask.ended or token not in _allowed(mask, vocabulary):
            return False
        mask.accept(token)
    return mask.ended or END in _allowed(mask, vocabulary)


def random_text(grammar: Grammar, seed: int, vocabulary: Vocabulary | None = None, most: int = 400) -> bytes | None:
    """Return a text of random tokens that `grammar` allows; None if it does not end within `most` tokens."""
    vocabulary = vocabulary or byte_vocabulary()
    mask, chance = compile_grammar(grammar, vocabulary).start(), random.Random(seed)
    text = b""
    for _ in range(most):
        if mask.ended:
            return text
        token = chance.choice(_allowed(mask, vocabulary))
        if token == END:
            return text
        mask.accept(token)
        text += vocabulary.pieces[token]
    return None


def finish_shortly(
    mask: TokenMask, begun: str, chance: random.Random, vocabulary: Vocabulary | None = None, most: int = 400
) -> str:
    """Return random text that may follow `begun`, up to the first place at which the text may end."""
    vocabulary, text = vocabulary or byte_vocabulary(), b""
    for token in vocabulary.encode(begun):
        assert token in _allowed(mask, vocabulary), f"{begun!r} is not allowed"
        mask.accept(token)
    for _ in range(most):
        allowed = [] if mask.ended else _allowed(mask, vocabulary)
        if mask.ended or END in allowed:
            return text.decode()
        token = chance.choice(allowed)
        mask.accept(token)
        text += vocabulary.pieces[token]
    raise AssertionError(f"{text!r} does not end")


def _allowed(mask: TokenMask, vocabulary: Vocabulary) -> list[int]:
    allowed = mask.next()
    assert allowed is not None
    tokens: list[int] = allowed_tokens(allowed, vocabulary.size).tolist()
    return tokens
