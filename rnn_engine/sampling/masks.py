"""Token masks, which say which tokens of the vocabulary may come next, for grammars and budgets of thinking tokens."""

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
"""[ceil(V / 32)]: bit t % 32 of word t // 32 is set if token t is allowed. Bits from V on have no meaning."""

_log = logging.getLogger(__name__)

_EMPTY = "the mask of a token allows no token"

MOST_SECONDS: Final = 10.0  # of processor time that all masks of one text may take
MOST_SECONDS_EACH: Final = 0.5  # of processor time that one mask may take


class TokenMask(Protocol):
    """The protocol of an object that decides which tokens may come next in one text, such as a grammar.

    `next` may be called on another thread than the other methods, but never two methods at a time.
    """

    @property
    def ended(self) -> bool:
        """True if the text ends here, with finish reason `stop`. False before the first token."""

    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next in the text, without being drawn; empty if none are forced.

        They all go through the model together. `accept` is called with each. This is called before `next`, and `next`
        only if there is no forced token. A mix of states does not call it, so `next` must lead to the same tokens.
        """

    def next(self) -> Mask | None:
        """Return a mask that stays the same until `accept`; None allows all. An error ends only its own request."""

    def accept(self, token: int) -> None:
        """Advance the position in the text past `token`, which must be forced or allowed by `next`."""

    def copy(self) -> TokenMask:
        """Return an independent copy of this object, at the same position in the text."""


class ListedTokens:
    """A `TokenMask` that allows the same tokens everywhere in a text."""

    ended = False

    def __init__(self, tokens: Sequence[int], vocab_size: int) -> None:
        self._mask = mask_of(tokens, vocab_size)

    def forced(self) -> Sequence[int]:
        return ()

    def next(self) -> Mask:
        return self._mask

    def accept(self, token: int) -> None:
        pass

    def copy(self) -> ListedTokens:
        return self


class AllowedTokens:
    """A token mask whose type and shape were checked, with the number of tokens that it allows."""

    __slots__ = ("_count", "_vocab_size", "mask")

    def __init__(self, mask: Mask, vocab_size: int) -> None:
        """Check the token mask `mask`. Raises StepError if its type or shape is wrong, or if it allows no token."""
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
        """The number of allowed tokens, counted when first read. Raises StepError if there is none."""
        if self._count == 0:
            self._count = count_allowed(self.mask, self._vocab_size)
        if self._count == 0:
            raise StepError(_EMPTY)
        return self._count


class SequenceMask:
    """The constraints on the next token of one sequence: tokens that are forced, or a mask of allowed ones.

    `forced` are tokens that come next, one after another, without being drawn.
    `current` holds the tokens that may be drawn next, and is None if all are allowed. `find_out` makes it, perhaps on
    another thread while a step runs. Meanwhile only `is_known` may be read.
    """

    def __init__(
        self, source: TokenMask, vocab_size: int, ends: Collection[int] = (), *, may_force: bool = True
    ) -> None:
        """Constrain a sequence, from its start, by `source`, which is a grammar for example.

        `ends` are tokens that end a text; any of them is allowed if `source` allows token 0, and 0 is then allowed only
        if it is one of them, or if there is none. If `may_force` is False, all tokens are drawn.
        """
        self._source = source
        self._vocab_size = vocab_size
        self._ends = frozenset(ends)
        self._added: frozenset[int] = frozenset()  # those of `_ends` that were added to the current mask
        self._may_force = may_force
        self._current: AllowedTokens | MaskError | None = None  # an exception is one that making the mask has raised
        self._seconds = 0.0  # of processor time that the masks so far have taken
        self.last_seconds = 0.0  # by the clock, that the last mask has taken
        self.is_known = False  # whether `current` has been made
        self.is_late = False  # a step has not waited for it
        self.forced: Sequence[int] = ()
        self.advance()

    @property
    def ended(self) -> bool:
        return self._source.ended

    @property
    def current(self) -> AllowedTokens | None:
        """The tokens that may be drawn next, None for all. Raises MaskError if the mask is unfit or took too long."""
        self.find_out()
        if isinstance(self._current, MaskError):
            raise self._current
        return self._current

    def accept(self, token: int) -> None:
        """Advance past `token`, the next one of the sequence. `current` is None until `advance` is called."""
        if token not in self._added:
            begun = time.thread_time()
            with _own_error():
                self._source.accept(token)
            self._count_seconds(begun)
        self._current, self.is_known = None, True

    def advance(self) -> None:
        """Discard the mask of the previous position, and get the tokens that are forced after the last one."""
        self._added = frozenset()
        self.is_known = self.is_late = False
        if self._may_force:
            with _own_error():
                self.forced = self._source.forced()

    def find_out(self) -> None:
        """Compute the mask of the next token, unless it is known. An error is stored, and `current` raises it."""
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
        """Add the processor time since `begun` to that of the text. Raises MaskError if either exceeds its limit."""
        seconds = time.thread_time() - begun
        self._seconds += seconds
        if seconds > MOST_SECONDS_EACH or self._seconds > MOST_SECONDS:
            raise MaskError(
                f"the grammar takes too long to follow: {seconds:.2g} s of processor time for one token and "
                f"{self._seconds:.2g} s for the text; at most {MOST_SECONDS_EACH:g} s and {MOST_SECONDS:g} s are "
                "allowed"
            )

    def _with_ends(self, mask: Mask) -> Mask:
        """Return a copy of `mask` that allows the tokens that end a text in place of token 0.

        Return `mask` itself if it does not allow token 0, or allows no more and no fewer of them.
        """
        if not self._ends or len(mask) != mask_words(self._vocab_size) or not mask.item(0) & 1:
            return mask
        self._added = frozenset(token for token in self._ends if not mask.item(token >> 5) >> (token & 31) & 1)
        extended = mask | mask_of(self._added, self._vocab_size) if self._added else mask
        return extended if 0 in self._ends else extended & ~mask_of((0,), self._vocab_size)

    def fork(self) -> SequenceMask:
        """Return an independent copy of this object, at the same position of the sequence."""
        ahead = copy(self)
        ahead._source = self._source.copy()
        return ahead

    def follow(self, draft: Sequence[int]) -> tuple[list[int], list[Mask | None]]:
        """Return the longest allowed beginning of the tokens `draft`, and the masks of these and of the next one.

        A token that ends the text is left out. A mask is None if the token is forced or all are allowed. Both lists are
        empty if `current` would raise.
        This object does not go back to the place before `draft`, so call this on a `fork`.
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
        except Exception:  # the sequence meets it too if it gets there
            _log.debug("a draft ends where a mask fails", exc_info=True)
        return admitted, masks

    def _mask_of_next(self) -> Mask | None:
        if self.forced or self.current is None:
            return None
        return self.current.mask.copy()

    def _go_on(self, token: int) -> bool:
        """Accept an allowed `token`, and get what is forced then; return False if it is refused or ends the text."""
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
        """Return masks [rows, ceil(V / 32)] of which the last is the current one; None if there is none."""
        self.find_out()
        if not isinstance(self._current, AllowedTokens):
            return None
        return stack_masks([*[None] * (num_rows - 1), self._current.mask])


@contextmanager
def _own_error() -> Iterator[None]:
    """Return a context manager that converts any exception of a grammar or other source of masks to MaskError."""
    try:
        yield
    except MaskError:
        raise
    except Exception as error:
        raise MaskError(str(error) or type(error).__name__) from error


def stack_masks(masks: Sequence[Mask | None]) -> NDArray[np.uint32]:
    """Stack masks, of which None allows all tokens and one at least is not None, to [rows, ceil(V / 32)]."""
    if len(masks) == 1 and masks[0] is not None:
        return masks[0][np.newaxis]
    known = next(mask for mask in masks if mask is not None)
    everything = np.full_like(known, 2**32 - 1)
    return np.stack([everything if mask is None else mask for mask in masks])


def mask_of(tokens: Collection[int], vocab_size: int) -> Mask:
    mask: Mask = np.zeros(mask_words(vocab_size), np.uint32)
    for token in tokens:
        mask[token >> 5] |= np.uint32(1 << (token & 31))
    return mask


def allowed_tokens(mask: Mask, vocab_size: int) -> I32:
    """Return the ids of the tokens that the bit mask `mask` allows, ascending."""
    return np.flatnonzero(unpack_masks(mask, vocab_size)).astype(np.int32)


def count_allowed(mask: Mask, vocab_size: int) -> int:
    """Return the number of tokens that the bit mask `mask` allows."""
    counts = np.bitwise_count(mask.view(np.uint64) if len(mask) % 2 == 0 else mask)
    count = int(np.add.reduce(counts.astype(np.float32)))  # exact up to 2^24, and quicker than a sum of bytes
    stray = int(mask[-1]) >> (vocab_size % 32) if vocab_size % 32 else 0
    return count - stray.bit_count()


def are_allowed(mask: Mask, tokens: I32) -> NDArray[np.bool_]:
    """Return a boolean array that is True for those of `tokens` that the bit mask `mask` allows."""
    allowed: NDArray[np.bool_] = (mask[tokens >> 5] >> (tokens & 31).astype(np.uint32)) & 1 == 1
    return allowed


@dataclass(frozen=True, slots=True)
class Thinking:
    """How to close the thinking part that begins an answer: the closing text, its tokens, and the token budget."""

    end: bytes  # the text that closes them
    closing: Sequence[int]  # the tokens of `end`
    budget: int | None = None  # after this many tokens of thoughts they are closed; None is no limit


class ThinkingMask:
    """Closes an answer's thinking part once its budget is spent, and then allows what the answer's mask does."""

    def __init__(
        self,
        thinking: Thinking,
        token_bytes: Callable[[int], bytes],
        vocab_size: int,
        answer: Callable[[], TokenMask] | None,
        ends: Collection[int] = (0,),
    ) -> None:
        """Start in the thinking part. With `answer`, the mask of the text after it, none of `ends` is allowed there."""
        self._thinking = thinking
        self._token_bytes = token_bytes
        self._vocab_size = vocab_size
        self._make_answer = answer
        self._answer: TokenMask | None = None
        self._num_tokens = 0
        self._tail = b""  # the end of the thoughts so far
        self._closing: list[int] | None = None  # the tokens of the closing that still follow; None before it begins
        self._thinks = True
        self._among_thoughts = None if answer is None else ~mask_of(ends, vocab_size)

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
        return self._among_thoughts if due is None else mask_of((due,), self._vocab_size)

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
        """Return the token that must come next to close the thinking part; None if its token budget is not spent."""
        budget = self._thinking.budget
        if self._closing is None and budget is not None and self._num_tokens >= budget:
            self._closing = list(self._thinking.closing)
        return self._closing[0] if self._closing else None
