"""Tell how long the parts of an answer took, as llama-server does."""

from __future__ import annotations

import time

from rnn_engine.requests import Finished, PromptProgress, Started
from server.schemas.timings import PromptProgress as PromptProgressFields
from server.schemas.timings import Timings


def timings_of(started: Started, finished: Finished, ended: float | None = None) -> Timings | None:
    """Return the times of a request that ended at `ended`, by `time.monotonic`, or now; None where none were taken."""
    timing = started.timing
    if timing is None:
        return None
    prompt_tokens, predicted_tokens = started.prompt_tokens - started.cached_tokens, finished.completion_tokens
    prompt_seconds = timing.first_token - timing.started
    predicted_steps = max(predicted_tokens - 1, 0)  # the first token came with the prompt
    predicted_seconds = max((time.monotonic() if ended is None else ended) - timing.first_token, 0.0)
    timings: Timings = {
        "cache_n": started.cached_tokens,
        "prompt_n": prompt_tokens,
        "prompt_ms": prompt_seconds * 1000,
        "prompt_per_token_ms": _ratio(prompt_seconds * 1000, prompt_tokens),
        "prompt_per_second": _ratio(prompt_tokens, prompt_seconds),
        "predicted_n": predicted_tokens,
        "predicted_ms": predicted_seconds * 1000,
        "predicted_per_token_ms": _ratio(predicted_seconds * 1000, predicted_steps),
        "predicted_per_second": _ratio(predicted_steps, predicted_seconds),
    }
    if finished.draft_tokens > 0:
        timings["draft_n"], timings["draft_n_accepted"] = finished.draft_tokens, finished.accepted_tokens
    return timings


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


class ProgressClock:
    """Tells how far prompts have come, and how long that took."""

    def __init__(self) -> None:
        self._begun: dict[int, float] = {}  # number of the request -> when it began

    def tell(self, index: int, event: PromptProgress) -> PromptProgressFields:
        """Return what is told of request number `index`."""
        now = time.monotonic()
        begun = self._begun.setdefault(index, now)
        return {
            "total": event.prompt_tokens,
            "cache": event.cached_tokens,
            "processed": event.processed_tokens,
            "time_ms": 1000 * (now - begun),
        }
