"""What the scheduler does with the cache of states: where a prompt starts, and what is kept of it.

A cache that fails costs time and never a request: the prompt then runs from its beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rnn_engine.requests import GenerateRequest
from rnn_engine.types import F32, Runner
from states.cache import StateCache
from states.checkpoint import CheckpointKind
from states.initial import root_of
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
        self._root = root_of(None)

    def begin(self, request: GenerateRequest, slot: int) -> Start:
        """Put the state that `request` starts from into `slot`.

        A prompt whose every token is scored is run from its first token, whatever is known of it.
        """
        if self._cache is not None and request.score_from is None:
            try:
                return self._look_up(self._cache, request.prompt, slot)
            except Exception:
                logger.exception("the cache of states failed; a prompt is run from its beginning")
        self._runner.write_state(slot, None)
        return Start()

    def keep(
        self, tokens: Sequence[int], slot: int, kind: CheckpointKind, read_logits: Callable[[], F32] | None
    ) -> None:
        """Keep the state of `slot`, which has run exactly `tokens`, and the logits [V] after them where there are."""
        if self._cache is None:
            return
        try:
            logits = None if read_logits is None else read_logits()
            self._cache.insert(self._root, tokens, slot, kind=kind, logits=logits)
        except Exception:
            logger.exception("the cache of states failed; a state of %d tokens is not kept", len(tokens))

    def _look_up(self, cache: StateCache, prompt: Sequence[int], slot: int) -> Start:
        match = cache.look_up(self._root, prompt)
        if match.saved > 0:
            cache.restore(match, slot)
        else:
            self._runner.write_state(slot, None)
        return Start(match.saved, plan_cuts(len(prompt), match.saved, match.known), match.logits)
