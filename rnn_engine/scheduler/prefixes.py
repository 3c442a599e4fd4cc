"""What the scheduler does with the cache of states: where a prompt starts, and what is kept of it.

What is kept is kept under the root of the state that the request started from.

A cache that fails costs time and never a request: the prompt then runs from its beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rnn_engine.requests import GenerateRequest
from rnn_engine.types import F32, Runner
from states.cache import StateCache
from states.checkpoint import CheckpointKind
from states.initial import NO_INITIAL_STATE
from states.policy import Cut, plan_cuts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """From where a request's prompt is run."""

    cached_tokens: int = 0  # of the prompt, in the slot's state already
    cuts: tuple[Cut, ...] = ()  # where its runs end, ascending, because the state is kept there
    logits: F32 | None = None  # [V] those after the whole prompt, where nothing of it has to be run


class Prefixes:
    """The states of known prefixes of prompts, for one runner. `cache` is None where nothing is kept."""

    def __init__(self, runner: Runner, cache: StateCache | None) -> None:
        self._runner = runner
        self._cache = cache

    def begin(self, request: GenerateRequest, slot: int) -> Start:
        """Put the state that `request` goes on from into `slot`."""
        if self._cache is not None and len(request.prompt) > 0:
            try:
                return self._look_up(self._cache, request, slot)
            except Exception:
                logger.exception("the cache of states failed; a prompt is run from its beginning")
        return self._begin_at_start(request, slot)

    def keep(
        self,
        request: GenerateRequest,
        tokens: Sequence[int],
        slot: int,
        kind: CheckpointKind,
        read_logits: Callable[[], F32] | None,
    ) -> None:
        """Keep the state of `slot`, which has run exactly `tokens`, and the logits [V] after them where there are."""
        if self._cache is None or len(tokens) == 0:
            return
        try:
            logits = None if read_logits is None else read_logits()
            self._cache.insert(_root(request), tokens, slot, kind=kind, logits=logits)
        except Exception:
            logger.exception("the cache of states failed; a state of %d tokens is not kept", len(tokens))

    def _look_up(self, cache: StateCache, request: GenerateRequest, slot: int) -> Start:
        match = cache.look_up(_root(request), request.prompt, _limit(request))
        cuts = _plan(request, match.saved, match.known)
        if match.saved == 0:
            return replace(self._begin_at_start(request, slot), cuts=cuts)
        cache.restore(match, slot)
        return Start(match.saved, cuts, match.logits)

    def _begin_at_start(self, request: GenerateRequest, slot: int) -> Start:
        self._runner.write_state(slot, None if request.start is None else request.start.state)
        known = request.start is not None and len(request.prompt) == 0
        return Start(logits=request.start.logits if request.start is not None and known else None)


def _root(request: GenerateRequest) -> str:
    return NO_INITIAL_STATE if request.start is None else request.start.root


def _limit(request: GenerateRequest) -> int | None:
    """How much of the prompt may be saved: the logits that score a token are those of the token before it."""
    return None if request.score_from is None else max(request.score_from - 1, 0)


def _plan(request: GenerateRequest, saved: int, known: int) -> tuple[Cut, ...]:
    """The cuts of a prompt. All that are scored after the same beginning share the state from which that is done."""
    length, limit = len(request.prompt), _limit(request)
    if limit is None:
        return plan_cuts(length, saved, known, request.turns, request.marks)
    cuts = plan_cuts(length, saved, known, request.turns, (*request.marks, limit))
    nothing_follows = request.max_tokens == 0 and length not in request.marks
    return tuple(cut for cut in cuts if cut.position < length) if nothing_follows else cuts
