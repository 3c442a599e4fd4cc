"""What the scheduler does with kept states: where a prompt starts, whether it waits, and what is kept of it.

Prompts that arrive together run what they share once: one leads, the others wait until its state is kept there.
What is kept is kept under the root of the state that the request started from. A cache that fails costs time and
never a request: the prompt then runs from its beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rnn_engine.requests import GenerateRequest
from rnn_engine.scheduler.cuts import PromptCuts
from rnn_engine.types import F32, Runner
from states.cache.cache import StateCache
from states.cache.checkpoint import CheckpointKind
from states.cache.fetch import Fetch
from states.cache.inflight import InFlight, Wait
from states.cache.policy import CheckpointPoint, plan_checkpoints
from states.frozen import NO_INITIAL_STATE
from states.tokens import TOKEN_BYTES, pack

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """From where a request's prompt is run."""

    cached_tokens: int = 0  # of the prompt, in the slot's state already
    cuts: PromptCuts = field(default_factory=PromptCuts)
    logits: F32 | None = None  # [V] those after the whole prompt, where nothing of it has to be run


@dataclass(frozen=True, slots=True)
class Path:
    """A part of a prompt, from its beginning, and the root that it goes on from."""

    root: str
    packed: bytes

    @property
    def length(self) -> int:
        """In tokens."""
        return len(self.packed) // TOKEN_BYTES


class Prefixes:
    """The states of known prefixes of prompts, for one runner. `cache` is None where nothing is kept."""

    def __init__(self, runner: Runner, cache: StateCache | None, wake: Callable[[], None] = lambda: None) -> None:
        """`wake` is called on another thread when a fetch is done."""
        self._runner = runner
        self._wake = wake
        self._cache = cache
        self._in_flight = InFlight()

    @property
    def num_leads(self) -> int:
        """How many prompts may be waited for."""
        return len(self._in_flight)

    def path(self, request: GenerateRequest) -> Path:
        """What of the prompt others may share with it, under which root."""
        return Path(_root(request), pack(request.prompt[: _limit(request)]))

    def find_wait(self, request: GenerateRequest, path: Path, waited: Wait | None) -> Wait | None:
        """For which running prompt `request` is to wait, if for any. `waited` is for what it has waited already."""
        if self._cache is None or len(self._in_flight) == 0:
            return None
        try:
            saved = self._cache.peek(path.root, request.prompt, _limit(request))
        except Exception:
            logger.exception("the cache of states failed; a prompt waits for no other")
            return None
        if waited is not None and waited.passed and saved < waited.position:
            return None  # the cache has had no room for that state
        wait = self._in_flight.find(path.root, path.packed, saved)
        if wait is not None:
            wait.claim()
        return wait

    def fetch(self, request: GenerateRequest, path: Path) -> Fetch | None:
        """Begin to read the state that `request` goes on from, where it has to be read first; else None."""
        if self._cache is None or len(request.prompt) == 0:
            return None
        try:
            return self._cache.prefetch(path.root, request.prompt, _limit(request), on_done=self._wake)
        except Exception:
            logger.exception("the cache of states failed; a state is not read ahead")
            return None

    def begin(self, request: GenerateRequest, path: Path, slot: int, fetch: Fetch | None = None) -> Start:
        """Put the state that `request` goes on from into `slot`; `fetch` is what was read for it."""
        if self._cache is not None and len(request.prompt) > 0:
            try:
                return self._look_up(self._cache, request, path, slot, fetch)
            except Exception:
                logger.exception("the cache of states failed; a prompt is run from its beginning")
        self._write_start(request, slot)
        if request.initial_state is None or len(request.prompt) > 0:
            return Start()
        return Start(logits=request.initial_state.logits)

    def concerns(self, start: Start, path: Path) -> bool:
        """Whether one that is kept back should ask `find_wait` because of a prompt that has just begun.

        What the cache has for it is no more than what it had for that prompt, as far as they agree.
        """
        lead = start.cuts.lead
        return lead is not None and self._in_flight.find(path.root, path.packed, lead.position, [lead]) is not None

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

    def _look_up(
        self, cache: StateCache, request: GenerateRequest, path: Path, slot: int, fetch: Fetch | None
    ) -> Start:
        match = cache.look_up(path.root, request.prompt, _limit(request), fetch=fetch)
        try:
            if match.saved > 0:
                cache.restore(match, slot)
            else:
                self._write_start(request, slot)
        finally:
            cache.release(match)
        lead = self._in_flight.lead(path.root, path.packed, match.saved) if match.saved < path.length else None
        return Start(match.saved, PromptCuts(_plan(request, match.saved, match.known), lead), match.logits)

    def _write_start(self, request: GenerateRequest, slot: int) -> None:
        self._runner.write_state(slot, None if request.initial_state is None else request.initial_state.state)


def _root(request: GenerateRequest) -> str:
    return NO_INITIAL_STATE if request.initial_state is None else request.initial_state.root


def _limit(request: GenerateRequest) -> int | None:
    """How much of the prompt may be saved: the logits that score a token are those of the token before it."""
    return None if request.score_from is None else max(request.score_from - 1, 0)


def _plan(request: GenerateRequest, saved: int, known: int) -> tuple[CheckpointPoint, ...]:
    """The cuts of a prompt. All that are scored after the same beginning share the state from which that is done."""
    length, limit = len(request.prompt), _limit(request)
    if limit is None:
        return plan_checkpoints(length, saved, known, request.turns, request.marks)
    cuts = plan_checkpoints(length, saved, known, request.turns, (*request.marks, limit))
    nothing_follows = request.max_tokens == 0 and length not in request.marks
    return tuple(cut for cut in cuts if cut.position < length) if nothing_follows else cuts
