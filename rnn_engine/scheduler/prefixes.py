"""Use of the state cache for prompts: finds their start, lets them wait for shared parts, and saves their states.

Prompts that arrive together run their common part once. States are saved under the root of the state that the request
started from. A cache that fails costs time but never fails a request: the prompt is then run from its beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from rnn_engine.requests import GenerateRequest
from rnn_engine.scheduler.checkpoints import (
    CheckpointPlan,
    CheckpointPoint,
    PromptPrefix,
    SingleFlight,
    Wait,
    Waypoints,
    find_break,
    plan_checkpoints,
)
from rnn_engine.scheduler.queue import Waiting
from rnn_engine.types import F32, Runner
from rnn_engine_states.cache.cache import StateCache
from rnn_engine_states.cache.checkpoint import CheckpointKind, make_root
from rnn_engine_states.cache.tiers.fetches import Fetch
from rnn_engine_states.frozen import NO_INITIAL_STATE
from rnn_engine_states.tokens import pack

logger = logging.getLogger(__name__)

_MOST_EARLIER = 4096  # tokens of an earlier text that one look-up returns at most


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a prompt's run: its number of cached tokens, its checkpoint plan, and logits if all are cached."""

    cached_tokens: int = 0  # of the prompt, in the slot's state already
    plan: CheckpointPlan = field(default_factory=CheckpointPlan)
    logits: F32 | None = None  # [V] after the whole prompt, if nothing of it must be run


class Prefixes:
    """Finds cached states for prompts and saves new ones, for one runner. Without a cache, it does neither."""

    def __init__(
        self,
        runner: Runner,
        cache: StateCache | None,
        token_bytes: Callable[[int], bytes],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect `cache` with `runner`. `wake` is called on another thread when an awaited state has been read."""
        self._runner = runner
        self._token_bytes = token_bytes
        self._wake = wake
        self._cache = cache
        self._flights = SingleFlight()

    def replace_runner(self, runner: Runner) -> None:
        """Use `runner`, another one of the same model; the cache's owner connects the cache with it."""
        self._runner = runner

    def prefix(self, request: GenerateRequest) -> PromptPrefix:
        """Return the part of a request's prompt whose states other requests may use, with its initial state."""
        packed = pack(request.prompt[: _limit(request)])
        return PromptPrefix(_root(request), packed, request.client.is_background)

    def hold_back(self, waiting: Waiting) -> bool:
        """Return True if `waiting` should wait for a running prompt or for the read of a state, which this begins."""
        held_back = [self._hold_back(member) for member in waiting.members]  # a list, so that all reads begin at once
        return any(held_back)

    def concerns(self, start: Start, waiting: Waiting) -> bool:
        """Return True if the request `waiting` may have to wait for a prompt that has just started; see `hold_back`.

        `start` is that of the started prompt. Of their common part, the cache has no more for the waiting prompt than
        it had for the one that started.
        """
        return any(
            self._flights.find(member.prefix, start.plan.position, [start.plan]) is not None
            for member in waiting.members
        )

    def begin(self, waiting: Waiting, slot: int) -> Start:
        """Write the cached or initial state from which a prompt is run to `slot`, and return the start of its run."""
        request = waiting.request
        if self._cache is not None and len(request.prompt) > 0:
            try:
                return self._look_up(self._cache, waiting, slot)
            except Exception:
                logger.exception("the cache of states failed; a prompt is run from its beginning")
        self._write_initial_state(request, slot)
        start = request.initial_state
        if start is None or len(request.prompt) > start.taken_in:
            return Start(0 if start is None else start.taken_in)
        return Start(start.taken_in, logits=start.logits)

    def keep(
        self,
        request: GenerateRequest,
        tokens: Sequence[int],
        slot: int,
        point: CheckpointPoint,
        read_logits: Callable[[], F32],
    ) -> None:
        """Save `slot`, which has run exactly `tokens`, as the checkpoint `point`. An error is only logged."""
        if self._cache is None or len(tokens) == 0:
            return
        try:
            logits = read_logits() if point.logits else None
            self._cache.insert(_root(request), tokens, slot, kind=point.kind, logits=logits)
        except Exception:
            logger.exception("the cache of states failed; a state of %d tokens is not kept", len(tokens))

    def find_earlier(self, request: GenerateRequest, generated: Sequence[int]) -> Sequence[int]:
        """Return the tokens that followed the prompt and `generated` in an earlier request; empty if none is known."""
        if self._cache is None:
            return ()
        try:
            return self._cache.continuation(_root(request), [*request.prompt, *generated], _MOST_EARLIER)
        except Exception:
            logger.exception("the cache of states failed; earlier texts are not searched")
            return ()

    def _hold_back(self, waiting: Waiting) -> bool:
        if not self._has_asked(waiting):
            return True
        wait = self._find_wait(waiting)
        if wait is not None:
            wait.claim()
            waiting.wait = wait
            waiting.set_fetch(None)
            return True
        while (fetch := self._prefetch(waiting)) is not None:
            waiting.set_fetch(fetch)
            if not fetch.done:
                return True
            if not fetch.failed:
                return False
        waiting.set_fetch(None)
        return False

    def _has_asked(self, waiting: Waiting) -> bool:
        """Ask other servers once which states of a prompt they have saved; return True if no answer is pending."""
        request = waiting.request
        if self._cache is None or len(request.prompt) == 0:
            return True
        try:
            if not waiting.asked:
                waiting.asked = True
                waiting.inquiry = self._cache.inquire(
                    waiting.prefix.root, request.prompt, _limit(request), on_done=self._wake
                )
            if waiting.inquiry is None:
                return True
            if waiting.inquiry.done:
                self._cache.learn(waiting.inquiry)
            return waiting.inquiry.done
        except Exception:
            logger.exception("the cache of states failed; other servers are not asked")
            return True

    def _find_wait(self, waiting: Waiting) -> Wait | None:
        if self._cache is None or len(self._flights) == 0:
            return None
        try:
            saved = self._cache.peek(waiting.prefix.root, waiting.request.prompt, _limit(waiting.request))
        except Exception:
            logger.exception("the cache of states failed; a prompt does not wait for another one")
            return None
        waited = waiting.wait
        if waited is not None and waited.passed and saved < waited.position:
            return None  # the cache had no room for that state
        return self._flights.find(waiting.prefix, saved)

    def _prefetch(self, waiting: Waiting) -> Fetch | None:
        """Begin to read the cached state that a request will start from; None if none must be read first."""
        request = waiting.request
        if self._cache is None or len(request.prompt) == 0:
            return None
        try:
            root, limit, owner = waiting.prefix.root, _limit(request), request.client
            return self._cache.prefetch(root, request.prompt, limit, on_done=self._wake, owner=owner)
        except Exception:
            logger.exception("the cache of states failed; a state is not read ahead")
            return None

    def _look_up(self, cache: StateCache, waiting: Waiting, slot: int) -> Start:
        request, prefix, start = waiting.request, waiting.prefix, waiting.request.initial_state
        taken_in = 0 if start is None else start.taken_in
        match = cache.look_up(prefix.root, request.prompt, _limit(request), fetch=waiting.fetch)
        saved, logits = max(match.saved, taken_in), match.logits
        try:
            if match.saved > 0 and match.saved == saved:
                cache.restore(match, slot)
            else:
                self._write_initial_state(request, slot)
        finally:
            cache.release(match)
        if start is not None and match.saved < taken_in:
            logits = start.logits if taken_in == len(request.prompt) else None
            tokens = request.prompt[:taken_in]
            cache.insert(prefix.root, tokens, slot, kind=CheckpointKind.MARK, logits=start.logits)
        points = _plan(request, saved, match.known)
        waypoints = Waypoints(
            prefix.length,
            saved,
            [point.position for point in points],
            self._runner.max_tokens,
            partial(find_break, request.prompt, self._token_bytes),
        )
        return Start(saved, self._flights.lead(prefix, saved, points, waypoints), logits)

    def _write_initial_state(self, request: GenerateRequest, slot: int) -> None:
        self._runner.write_state(slot, None if request.initial_state is None else request.initial_state.state)


def _root(request: GenerateRequest) -> str:
    initial_state = NO_INITIAL_STATE if request.initial_state is None else request.initial_state.root
    return make_root(initial_state, request.cache_scope)


def _limit(request: GenerateRequest) -> int | None:
    """Return how many first tokens may come from the cache, None for all: the token before a scored one must be run."""
    return None if request.score_from is None else max(request.score_from - 1, 0)


def _plan(request: GenerateRequest, saved: int, known: int) -> tuple[CheckpointPoint, ...]:
    """Return the positions at which to save the states of a request's prompt, ascending.

    The first `saved` tokens come from the cache, and the first `known` follow a path that the cache knows. A scored
    prompt gets a point before its scored part, which other prompts may share.
    """
    length, limit, wanted = len(request.prompt), _limit(request), request.checkpoint_positions
    if limit is None:
        return plan_checkpoints(length, saved, known, request.turn_positions, wanted)
    points = plan_checkpoints(length, saved, known, request.turn_positions, (*wanted, limit))
    nothing_follows = request.max_tokens == 0 and length not in wanted
    return tuple(point for point in points if point.position < length) if nothing_follows else points
