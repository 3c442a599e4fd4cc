"""The tokens that one sequence runs in one slot: its prompt, what was drawn, and what is forced.

A request has one of these, or of a mix one for each state.

What is drawn is the same for all of them: `LiveSequence` draws, of a mix the first of them (`mixed.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from functools import cache, lru_cache, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.requests import Event, GenerateRequest, TokenInfo
from rnn_engine.sampling import AllowedTokens, LogitRow, RunRows, SequenceSampler, top_logprobs
from rnn_engine.scheduler.checkpoints import CheckpointPoint
from rnn_engine.scheduler.prefixes import Start
from rnn_engine.scheduler.queue import TokenDemand
from rnn_engine.telemetry import SlotUse
from rnn_engine.types import F32, TokenRun, mask_words
from states.cache.checkpoint import CheckpointKind


class GivenTokens:
    """What is still to be run of an answer, up to `end`, and the events that wait for it.

    `unscored` are tokens that lack their log-probability: each is scored by the row of the token before it.
    """

    def __init__(
        self, end: int, unscored: Iterable[TokenInfo] = (), alternatives: int = 0, events: Sequence[Event] = ()
    ) -> None:
        """`end` is a position in the sequence; `alternatives` of each token are wanted."""
        self.end = end
        self.events = list(events)
        self._unscored = deque(unscored)
        self._alternatives = alternatives

    @property
    def is_scored(self) -> bool:
        """Whether all tokens have their log-probabilities."""
        return not self._unscored

    def score(self, rows: RunRows) -> None:
        """Score the next tokens by the rows before them, whose targets are these tokens."""
        for index in range(len(rows)):
            if not self._unscored:  # the last row is that of the token which is drawn next
                return
            info, row = self._unscored.popleft(), rows.row(index)
            info.logprob = rows.target_logit(index) - row.logsumexp
            info.top = top_logprobs(row, self._alternatives)


# The tokens that may end a text: a device that draws several tokens at a time stops at each of them.

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


class PromptScores:
    """Scores a prompt's `tokens`, in their order, by the rows that come before them."""

    def __init__(self, tokens: Sequence[int], alternatives: int, token_bytes: Callable[[int], bytes]) -> None:
        self._unscored = iter(tokens)
        self._alternatives = alternatives
        self._token_bytes = token_bytes
        self._infos: list[TokenInfo] = []

    @property
    def infos(self) -> tuple[TokenInfo, ...]:
        """An entry for each token that was scored."""
        return tuple(self._infos)

    def take(self, rows: RunRows) -> None:
        """Score the next tokens by `rows`, whose targets are these tokens; leave out a row after the last."""
        for index in range(len(rows)):
            self.take_row(rows.row(index), rows.target_logit(index))

    def take_row(self, row: LogitRow, logit: float) -> None:
        """Score the next token, if there is one, by the row before it, whose logit at the token is `logit`."""
        token = next(self._unscored, None)
        if token is not None:
            top = top_logprobs(row, self._alternatives)
            self._infos.append(TokenInfo(token, self._token_bytes(token), logit - row.logsumexp, top))

    def take_unknown(self) -> None:
        """Leave the next token without a score, as no row is known before it."""
        token = next(self._unscored)
        self._infos.append(TokenInfo(token, self._token_bytes(token), None))


def begin_scores(
    request: GenerateRequest, num_candidates: int, token_bytes: Callable[[int], bytes]
) -> PromptScores | None:
    """Return the scores of a request's prompt, None where it asks for none.

    The prompt's first token is taken where it is scored, for no row of a step scores it: by the logits that the request
    starts from, of which `num_candidates` are sorted, if it has some.
    """
    first = request.score_from
    if first is None:
        return None
    tokens = request.prompt[first:]
    scores = PromptScores(tokens, request.logprobs or 0, token_bytes)
    if first > 0 or len(tokens) == 0:
        return scores
    logits = None if request.initial_state is None else request.initial_state.logits
    if logits is None:
        scores.take_unknown()
    else:
        scores.take_row(LogitRow.of_full(logits, num_candidates), logits.item(tokens[0]))
    return scores


DECODE = TokenDemand(1)  # a token that was drawn, from which the next one follows
TAKE_IN = TokenDemand(1)  # a token that was drawn, for the state after it alone


class DraftDemand(TokenDemand):
    """Tokens that were drawn, and a draft of those that may be drawn after them."""

    __slots__ = ()


class Member(ABC):
    """A prompt and what was generated after it, in `slot`.

    The scheduler calls `run` for each step and, when the step is done, `advance` and then `passed`. Up to two runs may
    be in flight while they lie in the prompt, or where a device draws.
    """

    def __init__(self, key: int, request: GenerateRequest, slot: int, start: Start, context: Context) -> None:
        """`request` says what this one runs; `key` and `context`, that of whoever asked, are the whole request's."""
        self.key = key
        self.request = request
        self.slot = slot
        self.start = start
        self.context = context
        self.position = start.cached_tokens  # tokens that have been run
        self.runs_in_flight = 0  # those that do something
        self.draws: SequenceSampler | None = None  # what is to draw the next token; None where none is due
        self.decodes = False  # it runs the token that was drawn last, from whose row the next one is drawn
        self.finished = False
        self.released = False  # it has no slot, and nobody wants the outcome of runs in flight
        self.row: F32 | None = None  # [V] of a mix: the next token's logits, until all have theirs and one is drawn
        self._submitted = start.cached_tokens  # tokens that have been run or are in flight
        self._prompt_length = len(request.prompt)
        self._plan = start.plan
        self._generated = array("I")  # 4 bytes a token: a text may be as long as its client likes
        self._decode_demand = DECODE

    @property
    @abstractmethod
    def members(self) -> tuple[Member, ...]:
        """All of the same request, which begin, pause and end together; the one that draws comes first."""

    @abstractmethod
    def advance(self, run: TokenRun, rows: RunRows) -> list[Event]:
        """Take in the rows that `run`, the oldest in flight, gave; return the events that follow from them.

        Where `draws` is set then, a token is to be drawn from the last one, from which more events follow.
        """

    @property
    def demand(self) -> TokenDemand:
        """What would be run next."""
        if self._submitted >= self._prompt_length:
            return self._decode_demand
        point = self._plan.next()
        end = self._prompt_length if point is None else point.position
        return TokenDemand(end - self._submitted, max(self._scored_rows(end), 1))

    @property
    def awaits_token(self) -> bool:
        """Whether the runs in flight give a token, which the host has to see before the next run."""
        return self.runs_in_flight > 0 and self._submitted >= self._prompt_length

    @property
    def can_run(self) -> bool:
        """Whether the next run can be submitted before the outcome of those in flight is known.

        Not past a checkpoint point, where the slot's state must be kept before it changes.
        """
        if self.runs_in_flight == 0:
            return self.row is None
        return not (self.awaits_token or self._plan.at(self._submitted))

    @property
    def tokens_run(self) -> list[int]:
        """The tokens that the slot's state has taken in since the request's start."""
        return [*self.request.prompt, *self._generated][: self.position]

    @property
    def allowed(self) -> AllowedTokens | None:
        """The tokens that the next one may be; None allows all. Raises what the mask has raised."""
        return None

    @property
    def awaits_mask(self) -> bool:
        """Whether a row has come, and the mask of the token that is to be drawn from it has not."""
        return False

    @property
    def may_be_due(self) -> bool:
        """Whether to ask for what is `due` and to say when it is kept: not amid an answer."""
        return self.finished or self.position <= self._prompt_length

    @property
    def due(self) -> CheckpointPoint | None:
        """The checkpoint that is to be made of the slot's present state, if any."""
        if (point := self._plan.at(self.position)) is not None:
            return point
        if self.finished and self.position > self._prompt_length:
            return CheckpointPoint(self.position, CheckpointKind.GENERATION_END, logits=True)
        return None

    def use(self, *, paused: bool) -> SlotUse:
        """Return what the slot is used for at this moment. For any thread."""
        return SlotUse(
            slot=self.slot,
            request=self.key,
            scope=self.request.cache_scope,
            paused=paused,
            prompt_tokens=self._prompt_length,
            cached_tokens=self.start.cached_tokens,
            run_tokens=self.position,
            generated_tokens=len(self._generated),
            max_tokens=self.request.max_tokens,
        )

    @property
    def may_draft(self) -> bool:
        """Whether the next run may have a draft behind the tokens that were drawn."""
        return False

    @property
    def draws_ahead(self) -> bool:
        """Whether a device can draw what follows the next run, and run that too."""
        return False

    def run(self, count: int, num_draws: int = 0) -> TokenRun:  # noqa: ARG002
        """Return the next `count` tokens as part of a step that is submitted now.

        At most `num_draws` of the tokens that follow are drawn by the device, where that is possible.
        """
        self.runs_in_flight += 1
        start = self._submitted
        end = self._submitted = start + count
        if start >= self._prompt_length:
            return TokenRun(self.slot, (self._generated[-1],), rows=1, masks=self._make_masks(1))
        self._plan.submit(end)
        tokens = self.request.prompt[start:end]
        if (rows := self._scored_rows(end, start)) > 0:
            # The prompt's last row has no target of its own; its logit at the last token is not used.
            targets = (*self.request.prompt[end - rows + 1 : end + 1], self.request.prompt[-1])
            masks = self._make_masks(rows) if end == self._prompt_length else None
            return TokenRun(self.slot, tokens, rows=rows, targets=targets[:rows], masks=masks)
        # A state that is to be kept gets a row too, for its logits tell whether it is sound.
        if end == self._prompt_length:
            return TokenRun(
                self.slot, tokens, rows=1, masks=self._make_masks(1), embeddings=self._embeddings_of(start, end)
            )
        rows = int(self._plan.at(end) is not None)
        return TokenRun(self.slot, tokens, rows=rows, embeddings=self._embeddings_of(start, end))

    def drop_draft(self) -> bool:
        """Undo the run whose outcome has come, if it had a draft, and make no more of them; return whether it had."""
        return False

    def _embeddings_of(self, start: int, end: int) -> F32 | None:
        """Return the embeddings that the request brings for a part of its prompt."""
        embeddings = self.request.embeddings
        return None if embeddings is None else embeddings[start:end]

    def passed(self) -> None:
        """Note that the checkpoint that was due at this moment, if any, has been kept."""
        if self._plan.position < self._prompt_length:
            self._plan.advance(self.position)

    def close(self) -> None:
        """Let nobody wait for it any longer: it runs no more, whatever it has reached."""
        self._plan.close()

    def _make_masks(self, num_rows: int) -> Callable[[], NDArray[np.uint32] | None] | None:  # noqa: ARG002
        """Return what makes the masks of a run whose last row the next token is drawn from; None: it has none."""
        return None

    def _scored_rows(self, end: int, start: int | None = None) -> int:
        """Return how many of the rows from `start` to `end` are scored; a token's row scores the one after it."""
        if self.request.score_from is None:
            return 0
        start = self._submitted if start is None else start
        return max(end - max(start, self.request.score_from - 1), 0)
