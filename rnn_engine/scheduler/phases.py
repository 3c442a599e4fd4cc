"""The phases of a sequence: each decides what the sequence runs next, and processes the logit rows of its runs.

A sequence is in one phase at a time. Up to two of its runs are in flight. The rows of each are processed by the phase
that submitted it, although the sequence may be in a later phase by then. `FOLLOWS`, at the end, says which phase may
follow another.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from rnn_engine.requests import Event, GenerateRequest, TokenInfo
from rnn_engine.sampling.ranking import LogitRow, RunRows, top_logprobs
from rnn_engine.scheduler.queue import DECODE, TAKE_IN, TokenDemand
from rnn_engine.types import F32, TokenRun

if TYPE_CHECKING:
    from rnn_engine.scheduler.sequence import SamplingSequence, SlotSequence

Of = TypeVar("Of", bound="SlotSequence")

_NOT_KNOWN = (0,)  # stands for the token of a run that follows one in flight


class Phase(Generic[Of]):
    """Base class of the phases of a sequence, each of which decides what the sequence runs next.

    If it `can_run`, the scheduler asks for its `demand` and then calls `run`. A phase does not refer to its sequence,
    which is passed to each call. So one object may serve many sequences.
    """

    def draws_ahead(self, sequence: Of) -> bool:
        """Return True if the device may draw a token after the next run, and run it too, before the host sees it."""
        return False

    def demand(self, sequence: Of) -> TokenDemand:
        """Return how many tokens the sequence would run next, and how many logit rows that needs."""
        raise NotImplementedError

    def can_run(self, sequence: Of) -> bool:
        """Return True if the sequence can submit its next run now, without waiting for its runs in flight."""
        return not sequence.in_flight

    def awaits_token(self, sequence: Of) -> bool:
        """Return True if the host must see a token of the runs in flight before the next run can be submitted."""
        return len(sequence.in_flight) > 0

    def run(self, sequence: Of, count: int, num_draws: int) -> TokenRun:
        """Return a run of `count` tokens, now in flight; the device draws up to `num_draws` after it if it can."""
        raise NotImplementedError

    def take(self, sequence: Of, run: TokenRun, rows: RunRows) -> list[Event]:
        """Process the logit rows of the sequence's oldest run in flight; return the events that follow for the client.

        This phase has submitted that run. If the sequence's `draws` is set on return, the caller must draw a token from
        the last row, and more events follow.
        """
        raise NotImplementedError


AnyPhase: TypeAlias = "Phase[Any]"


class PromptScores:
    """Collects the log-probabilities of a prompt's tokens in order, each from the logit row before the token."""

    def __init__(self, tokens: Sequence[int], alternatives: int, token_bytes: Callable[[int], bytes]) -> None:
        self._unscored = iter(tokens)
        self._alternatives = alternatives
        self._token_bytes = token_bytes
        self._infos: list[TokenInfo] = []

    @property
    def infos(self) -> tuple[TokenInfo, ...]:
        return tuple(self._infos)

    def take(self, rows: RunRows) -> None:
        """Record log-probabilities of the next prompt tokens, each from the row before; ignore a row after the last."""
        for index in range(len(rows)):
            self.take_row(rows.row(index), rows.target_logit(index))

    def take_row(self, row: LogitRow, logit: float) -> None:
        """Record the log-probability of the next prompt token, if any, from its `logit` in the `row` before it."""
        token = next(self._unscored, None)
        if token is not None:
            top = top_logprobs(row, self._alternatives)
            self._infos.append(TokenInfo(token, self._token_bytes(token), logit - row.logsumexp, top))

    def take_unknown(self) -> None:
        """Record the next prompt token without a log-probability, because there is no logit row before it."""
        token = next(self._unscored)
        self._infos.append(TokenInfo(token, self._token_bytes(token), None))


def begin_scores(
    request: GenerateRequest, num_candidates: int, token_bytes: Callable[[int], bytes]
) -> PromptScores | None:
    """Return the collector of log-probabilities for a request's prompt; None if the request asks for none.

    No step gives a row for the prompt's first token. The logits that the request starts from score it, if it has any;
    `num_candidates` of them are sorted.
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


class Prompt(Phase["SlotSequence"]):
    """The phase of a prompt, run in chunks that end wherever the state must be saved. Two may be in flight."""

    def demand(self, sequence: SlotSequence) -> TokenDemand:
        point, request = sequence.plan.next(), sequence.request
        end = sequence.prompt_length if point is None else point.position
        return TokenDemand(end - sequence.submitted, max(_count_scored(request, sequence.submitted, end), 1))

    def can_run(self, sequence: SlotSequence) -> bool:
        """Return False while the state after the runs in flight must be saved, since the next run changes it."""
        return not sequence.in_flight or sequence.plan.at(sequence.submitted) is None

    def awaits_token(self, sequence: SlotSequence) -> bool:
        return False

    def run(self, sequence: SlotSequence, count: int, num_draws: int) -> TokenRun:
        request, prompt = sequence.request, sequence.request.prompt
        sequence.in_flight.append(self)
        start = sequence.submitted
        end = sequence.submitted = start + count
        at_end = end == sequence.prompt_length
        sequence.plan.submit(end)
        run, point = TokenRun(sequence.slot, prompt[start:end], lora=sequence.lora), sequence.plan.at(end)
        if (rows := _count_scored(request, start, end)) > 0:
            # The prompt's last row has no next token as its target; it gets the last token, whose logit is not used.
            run.targets = (*prompt[end - rows + 1 : end + 1], prompt[-1])[:rows]
        else:
            # A state that will be saved gets a logit row too, because finite logits show that the state is sound.
            rows = int(at_end or point is not None)
        run.rows = rows
        is_answer = at_end and request.max_tokens == 0 and (request.keep_end or request.keep_row)
        run.reads_row = is_answer or (point is not None and point.logits)
        if at_end:
            run.masks = sequence.make_masks(rows)
            sequence.leave_prompt(run, num_draws)
        return run

    def take(self, sequence: SlotSequence, run: TokenRun, rows: RunRows) -> list[Event]:
        if sequence.scores is not None and run.targets is not None:
            sequence.scores.take(rows)
        sequence.position += len(run.tokens)
        progress = sequence.progress()
        if sequence.position < sequence.prompt_length:
            return progress
        events = sequence.take_rows(rows)
        return [*progress, *events] if progress else events


def _count_scored(request: GenerateRequest, start: int, end: int) -> int:
    """Return how many logit rows of the prompt from `start` to `end` are needed to score the tokens after them."""
    first = request.score_from
    return 0 if first is None else max(end - max(start, first - 1), 0)


class Decode(Phase[Of]):
    """The phase in which a sequence runs the token drawn last, or waits for the row of its first draw."""

    _demand = DECODE

    def demand(self, sequence: Of) -> TokenDemand:
        return self._demand

    def run(self, sequence: Of, count: int, num_draws: int) -> TokenRun:
        sequence.in_flight.append(self)
        sequence.submitted += 1
        masks = sequence.make_masks(1)
        return TokenRun(sequence.slot, (sequence.generated[-1],), rows=1, masks=masks, lora=sequence.lora)

    def take(self, sequence: Of, run: TokenRun, rows: RunRows) -> list[Event]:
        sequence.position += 1
        return sequence.take_rows(rows)


class TakeIn(Decode["SlotSequence"]):
    """The phase in which the last token is run for its state alone: a mix draws the next, or the text is over."""

    _demand = TAKE_IN


class AwaitSequences(Phase["SlotSequence"]):
    """The phase in which one sequence of a mix of states has its logit row and waits for those of the others."""

    def can_run(self, sequence: SlotSequence) -> bool:
        return False


class HostDecode(Decode["SamplingSequence"]):
    """The decode phase in which the host draws each next token. `DeviceDecode` follows if the device can draw."""

    def draws_ahead(self, sequence: SamplingSequence) -> bool:
        return sequence.halts is not None

    def run(self, sequence: SamplingSequence, count: int, num_draws: int) -> TokenRun:
        if num_draws and sequence.halts is not None:
            return sequence.enter(sequence.device).run(sequence, count, num_draws)
        return super().run(sequence, count, num_draws)

    def take(self, sequence: SamplingSequence, run: TokenRun, rows: RunRows) -> list[Event]:
        sequence.position += 1
        if sequence.answer.ending is not None:  # the text was cut while the run was in flight
            return sequence.go_on(rows.last)
        sequence.draw_from(rows.last)
        return []


class DeviceDecode(HostDecode):
    """The decode phase in which the device draws each next token. A run may follow a draw that is in flight."""

    def __init__(self) -> None:
        self.num_drawing = 0  # tokens that the runs in flight draw if nothing ends the text

    def draws_ahead(self, sequence: SamplingSequence) -> bool:
        return True

    def can_run(self, sequence: SamplingSequence) -> bool:
        return not sequence.is_cut and self._num_left(sequence) > 0 and not self.awaits_token(sequence)

    def awaits_token(self, sequence: SamplingSequence) -> bool:
        """Return True if a token is being drawn that no run can follow.

        Another device may draw it than the one that runs it, or the state at the prompt's end must be saved first.
        """
        if self.num_drawing == 0:
            return False
        at_end = sequence.submitted <= sequence.prompt_length and sequence.plan.at(sequence.submitted) is not None
        return at_end or not sequence.can_follow

    def _num_left(self, sequence: SamplingSequence) -> int:
        """Return how many more tokens of the text the device may draw, besides those of the runs in flight."""
        return sequence.request.max_tokens - len(sequence.generated) - self.num_drawing

    def run(self, sequence: SamplingSequence, count: int, num_draws: int) -> TokenRun:
        sequence.in_flight.append(self)
        sequence.submitted += 1
        follows = self.num_drawing > 0
        tokens = _NOT_KNOWN if follows else (sequence.generated[-1],)
        run = TokenRun(sequence.slot, tokens, rows=1, follows=follows, lora=sequence.lora)
        self.draw(sequence, run, min(num_draws, self._num_left(sequence)))
        return run

    def draw(self, sequence: SamplingSequence, run: TokenRun, count: int) -> None:
        """Set up `run` so that the device draws up to `count` tokens after it."""
        assert sequence.halts is not None, "the device draws for the sequence"
        run.draw = sequence.sampler.device_draw(count, sequence.halts, self.num_drawing)
        run.draw.logprobs = sequence.request.logprobs
        self.num_drawing += count


class Given(Phase["SamplingSequence"]):
    """The phase in which a sequence runs tokens of its answer that are known without a draw, up to position `end`.

    They are forced by a grammar, for example. `unscored` are tokens that still lack their log-probabilities: each is
    scored by the row of the token before it. The `events` of the tokens are held back until then.
    """

    def __init__(self, end: int, unscored: Iterable[TokenInfo] = (), events: Sequence[Event] = ()) -> None:
        self._end = end
        self._unscored = deque(unscored)
        self._events = list(events)

    def demand(self, sequence: SamplingSequence) -> TokenDemand:
        num_left = self._end - sequence.submitted
        return TokenDemand(num_left, num_left if self._unscored else 1)

    def run(self, sequence: SamplingSequence, count: int, num_draws: int) -> TokenRun:
        sequence.in_flight.append(self)
        start = sequence.submitted - sequence.prompt_length
        sequence.submitted += count
        tokens = sequence.generated[start : start + count]
        if self._unscored:
            targets = sequence.generated[start + 1 : start + count + 1]
            targets.extend(tokens[-1:] if len(targets) < count else ())  # the next token is not known yet
            masks = sequence.make_masks(count)
            return TokenRun(sequence.slot, tokens, rows=count, targets=targets, masks=masks, lora=sequence.lora)
        is_last = sequence.submitted == self._end
        masks = sequence.make_masks(1) if is_last else None
        return TokenRun(sequence.slot, tokens, rows=int(is_last), masks=masks, lora=sequence.lora)

    def take(self, sequence: SamplingSequence, run: TokenRun, rows: RunRows) -> list[Event]:
        sequence.position += len(run.tokens)
        if run.targets is not None:
            self._score(sequence, rows)
        if sequence.position < self._end:
            return []
        return [*self._events, *sequence.go_on(rows.last)]

    def _score(self, sequence: SamplingSequence, rows: RunRows) -> None:
        """Set the log-probabilities of the next unscored tokens, each from the row before it, whose target it is."""
        for index in range(len(rows)):
            if not self._unscored:  # the next token is drawn from the last row
                return
            info, row = self._unscored.popleft(), rows.row(index)
            info.logprob = rows.target_logit(index) - row.logsumexp
            info.top = top_logprobs(row, sequence.request.logprobs or 0)


class Closing(Given):
    """The phase in which a sequence whose text has ended runs the last tokens, for the state after them."""

    def demand(self, sequence: SamplingSequence) -> TokenDemand:
        return TAKE_IN if self._end - sequence.submitted == 1 else super().demand(sequence)


class AwaitMask(Phase["SamplingSequence"]):
    """The phase in which a sequence has the logit row [V] of its next token, and waits for the token's mask."""

    def __init__(self, logits: F32) -> None:
        self.logits = logits
        self.since = time.monotonic()

    def can_run(self, sequence: SamplingSequence) -> bool:
        return False


class Done(Phase["SlotSequence"]):
    """The last phase of a sequence: its text has ended, and nothing more is run."""

    def can_run(self, sequence: SlotSequence) -> bool:
        return False


class Draft(Phase["SamplingSequence"]):
    """The phase of a sequence while a run with drafted tokens is in flight; see `drafts.py`."""


FOLLOWS: Mapping[type[AnyPhase], tuple[type[AnyPhase], ...]] = {
    Prompt: (Decode, Given, AwaitMask, AwaitSequences, Done),
    Decode: (TakeIn, AwaitSequences, Done),
    AwaitSequences: (Decode, AwaitMask, Done),
    HostDecode: (DeviceDecode, Given, Draft, AwaitMask, Done),
    DeviceDecode: (HostDecode, Given),
    Given: (HostDecode, Given, Draft, AwaitMask, Done),
    Draft: (HostDecode, Given),
    AwaitMask: (Decode, Done),
    Done: (),
}
"""Phase -> the phases that may follow it. A kind of phase that is not listed counts as its base class."""


def may_follow(before: type[AnyPhase], after: type[AnyPhase]) -> bool:
    """Return True if a sequence may change from the phase `before` to the phase `after`, as `FOLLOWS` lists."""
    allowed = next(FOLLOWS[kind] for kind in before.__mro__ if kind in FOLLOWS)
    return issubclass(after, allowed)
