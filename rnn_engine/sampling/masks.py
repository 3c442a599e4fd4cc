"""Masks that allow some tokens of a vocabulary, among them those that keep a model's thoughts within a budget."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import MaskError, StepError
from rnn_engine.types import I32, mask_words, unpack_masks

Mask: TypeAlias = NDArray[np.uint32]
"""[ceil(V / 32)] where bit t % 32 of word t // 32 is set if token t is allowed. Bits from V on have no meaning."""

_log = logging.getLogger(__name__)

_EMPTY = "the mask of a token allows no token"

MOST_SECONDS: Final = 10.0  # of the processor's time that the masks of one text may take
MOST_SECONDS_EACH: Final = 0.5  # and one mask of these


class TokenMask(Protocol):
    """Says before each token of one sequence which tokens it may be: a grammar, for one.

    `next` may be called on another thread than the others, but never two of them at a time.
    """

    @property
    def ended(self) -> bool:
        """Whether the text ends here, with reason `stop`. False before the first token."""
        ...

    def forced(self) -> Sequence[int]:
        """Return the tokens that come next whatever the model says, perhaps none; `accept` is called with each.

        They are not drawn, and all go through the model together. Asked before `next`, which is asked only where there
        is none. A mix of states does not ask, so `next` must lead to the same tokens.
        """
        ...

    def next(self) -> Mask | None:
        """Return the tokens that may come next, at least one; None allows all.

        The array must not change before `accept` is called. Where a call raises, its request alone ends.
        """
        ...

    def accept(self, token: int) -> None:
        """Go on to the place after `token`, which is forced, or was drawn from those that `next` allowed."""
        ...

    def copy(self) -> TokenMask:
        """Return one that is at the same place and goes on by itself."""
        ...


class AllowedTokens:
    """The tokens that a mask of the right shape allows."""

    __slots__ = ("_count", "_vocab_size", "mask")

    def __init__(self, mask: Mask, vocab_size: int) -> None:
        """Raise StepError for a mask of another type or shape, and for one that allows no token."""
        expected = (mask_words(vocab_size),)
        if mask.dtype != np.uint32 or mask.shape != expected:
            raise StepError(
                f"the mask of a token is {mask.dtype} of shape {mask.shape}; expected uint32 of shape {expected}"
            )
        if not mask.any():
            raise StepError(_EMPTY)
        self.mask = mask
        self._vocab_size = vocab_size
        self._count = 0  # not known

    @property
    def count(self) -> int:
        """How many there are, at least 1: counted where that is asked, since it takes as long as making a mask.

        Raises StepError where the only bits that are set have no meaning.
        """
        if self._count == 0:
            self._count = count_allowed(self.mask, self._vocab_size)
        if self._count == 0:
            raise StepError(_EMPTY)
        return self._count


class SequenceMask:
    """What is known of the next token of one sequence.

    `forced` are the tokens that come next, one after another, where these are not drawn. `current` says what one that
    is drawn may be, and is None where all tokens are allowed. `find_out` makes it, perhaps on another thread while a
    step runs; nothing but `is_known` may be asked meanwhile.
    """

    def __init__(
        self, source: TokenMask, vocab_size: int, ends: Collection[int] = (), *, may_force: bool = True
    ) -> None:
        """`ends` are tokens that end a text, too, wherever token 0 may. Where not `may_force`, all tokens are drawn."""
        self._source = source
        self._vocab_size = vocab_size
        self._ends = frozenset(ends)
        self._added: frozenset[int] = frozenset()  # of them, to the current mask
        self._may_force = may_force
        self._current: AllowedTokens | MaskError | None = None  # the exception is what finding it out has raised
        self._seconds = 0.0  # of the processor's time that the masks so far have taken
        self.last_seconds = 0.0  # by the clock, that the last mask has taken
        self.is_known = False  # whether `current` was found out
        self.is_late = False  # a step has not waited for it
        self.forced: Sequence[int] = ()
        self.advance()

    @property
    def ended(self) -> bool:
        """Whether no token follows the last one."""
        return self._source.ended

    @property
    def current(self) -> AllowedTokens | None:
        """Found out where it is not known. Raises MaskError, each time, for a mask that does not fit the vocabulary,
        allows no token or has taken too long."""
        self.find_out()
        if isinstance(self._current, MaskError):
            raise self._current
        return self._current

    def accept(self, token: int) -> None:
        """Take note of the next token; `current` is None then, until `advance`."""
        if token not in self._added:
            begun = time.thread_time()
            with _own_error():
                self._source.accept(token)
            self._count_seconds(begun)
        self._current, self.is_known = None, True

    def advance(self) -> None:
        """Find out what is forced after the last token."""
        self._added = frozenset()
        self.is_known = self.is_late = False
        if self._may_force:
            with _own_error():
                self.forced = self._source.forced()

    def find_out(self) -> None:
        """Make the mask of the next token, unless it is known."""
        if self.is_known:
            return
        begun, begun_thread = time.perf_counter(), time.thread_time()
        try:
            with _own_error():
                mask = self._source.next()
                self._count_seconds(begun_thread)
                self._current = None if mask is None else AllowedTokens(self._with_ends(mask), self._vocab_size)
        except MaskError as error:
            self._current = error
        self.last_seconds = time.perf_counter() - begun
        self.is_known = True

    def _count_seconds(self, begun: float) -> None:
        """Count the seconds since `begun`. Raises MaskError where they, or all so far, are too many."""
        seconds = time.thread_time() - begun
        self._seconds += seconds
        if seconds > MOST_SECONDS_EACH or self._seconds > MOST_SECONDS:
            raise MaskError(
                f"the grammar takes too long to follow: {seconds:.2g} s of the processor's time for one token and "
                f"{self._seconds:.2g} s for the text; {MOST_SECONDS_EACH:g} s and {MOST_SECONDS:g} s are allowed"
            )

    def _with_ends(self, mask: Mask) -> Mask:
        """Return `mask` with the tokens that end a text, where it allows the end."""
        if not self._ends or len(mask) != mask_words(self._vocab_size) or not mask.item(0) & 1:
            return mask
        self._added = frozenset(token for token in self._ends if not mask.item(token >> 5) >> (token & 31) & 1)
        if not self._added:
            return mask
        extended = mask.copy()
        for token in self._added:
            extended[token >> 5] |= np.uint32(1 << (token & 31))
        return extended

    def fork(self) -> SequenceMask:
        """Return one that is at the same place and goes on by itself."""
        ahead = copy(self)
        ahead._source = self._source.copy()
        return ahead

    def follow(self, draft: Sequence[int]) -> tuple[list[int], list[Mask | None]]:
        """Return the beginning of `draft` that may come next, and the masks of its tokens and of the one behind them.

        A token that ends the text is left out. None where a token is forced, or all are allowed. Both are empty where
        `current` would raise. It stays behind these tokens: see `fork`.
        """
        admitted: list[int] = []
        masks: list[Mask | None] = []
        try:
            masks.append(self._mask_of_next())
            for token in draft:
                if not self._go_on(token):
                    break
                mask = self._mask_of_next()
                admitted.append(token)
                masks.append(mask)
        except Exception:  # the sequence meets it too, where it comes there
            _log.debug("a draft ends where a mask fails", exc_info=True)
        return admitted, masks

    def _mask_of_next(self) -> Mask | None:
        if self.forced or self.current is None:
            return None
        return self.current.mask.copy()

    def _go_on(self, token: int) -> bool:
        """Accept the next token and find out what is forced behind it; return False where it can't be or ends all."""
        if self.forced:
            is_allowed, self.forced = token == self.forced[0], self.forced[1:]
        else:
            is_allowed = self.current is None or bool(self.current.mask.item(token >> 5) >> (token & 31) & 1)
        if not is_allowed:
            return False
        self.accept(token)
        if not self.forced:
            if self.ended:
                return False
            self.advance()
        return True

    def for_last(self, num_rows: int) -> NDArray[np.uint32] | None:
        """Return masks [rows, ceil(V / 32)] of which the last is the current one and the others allow all tokens.

        Where there is no current one, all tokens are allowed: None. Does not raise what `current` will.
        """
        self.find_out()
        if not isinstance(self._current, AllowedTokens):
            return None
        return stack_masks([*[None] * (num_rows - 1), self._current.mask])


@contextmanager
def _own_error() -> Iterator[None]:
    """Raise MaskError from whatever the block raises, since what follows from it is the mask's fault alone."""
    try:
        yield
    except MaskError:
        raise
    except Exception as error:
        raise MaskError(str(error) or type(error).__name__) from error


def stack_masks(masks: Sequence[Mask | None]) -> NDArray[np.uint32]:
    """Return the masks of rows, of which one is known, as [rows, ceil(V / 32)]. None allows all tokens."""
    if len(masks) == 1 and masks[0] is not None:
        return masks[0][np.newaxis]
    known = next(mask for mask in masks if mask is not None)
    everything = np.full_like(known, 2**32 - 1)
    return np.stack([everything if mask is None else mask for mask in masks])


def allowed_tokens(mask: Mask, vocab_size: int) -> I32:
    """Return the ids that `mask` allows, ascending."""
    return np.flatnonzero(unpack_masks(mask, vocab_size)).astype(np.int32)


def count_allowed(mask: Mask, vocab_size: int) -> int:
    """Return how many tokens `mask` allows."""
    counts = np.bitwise_count(mask.view(np.uint64) if len(mask) % 2 == 0 else mask)
    count = int(np.add.reduce(counts.astype(np.float32)))  # exact up to 2^24, and quicker than a sum of bytes
    stray = int(mask[-1]) >> (vocab_size % 32) if vocab_size % 32 else 0
    return count - stray.bit_count()


def are_allowed(mask: Mask, tokens: I32) -> NDArray[np.bool_]:
    """Return for each of `tokens` whether `mask` allows it."""
    allowed: NDArray[np.bool_] = (mask[tokens >> 5] >> (tokens & 31).astype(np.uint32)) & 1 == 1
    return allowed


@dataclass(frozen=True, slots=True)
class Thinking:
    """Thoughts with which a text begins. What comes after them is the answer, which a grammar may hold."""

    end: bytes  # the text that closes them
    closing: Sequence[int]  # tokens that say `end`
    budget: int | None = None  # tokens of thoughts, after which they are closed; None: as many as the model likes


class ThinkingMask:
    """Allows all tokens until the thoughts end, and then what the answer's mask allows. See `TokenMask`."""

    def __init__(
        self,
        thinking: Thinking,
        token_bytes: Callable[[int], bytes],
        vocab_size: int,
        answer: Callable[[], TokenMask] | None,
        ends: Collection[int] = (0,),
    ) -> None:
        """`answer` makes the mask of what comes after the thoughts; None allows all tokens there.

        With one, a text can't end among its thoughts: none of `ends` is allowed there.
        """
        self._thinking = thinking
        self._token_bytes = token_bytes
        self._vocab_size = vocab_size
        self._make_answer = answer
        self._answer: TokenMask | None = None
        self._num_tokens = 0
        self._tail = b""  # the end of the thoughts so far
        self._closing: list[int] | None = None  # what remains to be said of the closing, where it has begun
        self._thinks = True
        self._among_thoughts = None if answer is None else _all_but(ends, vocab_size)

    @property
    def ended(self) -> bool:
        return self._answer is not None and self._answer.ended

    def forced(self) -> Sequence[int]:
        if not self._thinks:
            return () if self._answer is None else self._answer.forced()
        return () if self._due() is None else tuple(self._closing or ())

    def next(self) -> Mask | None:
        if not self._thinks:
            return None if self._answer is None else self._answer.next()
        due = self._due()
        return self._among_thoughts if due is None else _only(due, self._vocab_size)

    def accept(self, token: int) -> None:
        if not self._thinks:
            if self._answer is not None:
                self._answer.accept(token)
            return
        self._num_tokens += 1
        if self._closing:
            del self._closing[0]
        self._tail = (self._tail + self._token_bytes(token))[-len(self._thinking.end) - 64 :]
        if self._closing == [] or (self._closing is None and self._thinking.end in self._tail):
            self._thinks = False
            self._answer = None if self._make_answer is None else self._make_answer()

    def copy(self) -> ThinkingMask:
        other = copy(self)
        other._closing = None if self._closing is None else list(self._closing)
        other._answer = None if self._answer is None else self._answer.copy()
        return other

    def _due(self) -> int | None:
        """Return the token that has to come next, where the budget is spent."""
        budget = self._thinking.budget
        if self._closing is None and budget is not None and self._num_tokens >= budget:
            self._closing = list(self._thinking.closing)
        return self._closing[0] if self._closing else None


def _all_but(tokens: Collection[int], vocab_size: int) -> Mask:
    mask: Mask = np.full(mask_words(vocab_size), 2**32 - 1, np.uint32)
    for token in tokens:
        mask[token >> 5] &= np.uint32(~(1 << (token & 31)) & (2**32 - 1))
    return mask


def _only(token: int, vocab_size: int) -> Mask:
    mask: Mask = np.zeros(mask_words(vocab_size), np.uint32)
    mask[token >> 5] = np.uint32(1 << (token & 31))
    return mask
