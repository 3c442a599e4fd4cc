"""Tell how long the parts of an answer took, as llama-server does."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rnn_engine.requests import Event, Finished, PromptProgress, Started, TextDelta
from server.schemas.timings import Timings


class AnswerClock:
    """Tells how far one request has come, and the times that it took."""

    def __init__(self, *, with_each: bool = False) -> None:
        """`with_each`: the times are told with each event, not only with the last one."""
        self._with_each = with_each
        self._begun: float | None = None  # when the prompt began to run
        self.started: Started | None = None
        self.predicted = 0  # tokens that were told

    def tell(self, event: Event) -> Mapping[str, object]:
        """Return `prompt_progress` and `timings`, as far as they are to be told with `event`."""
        timings: Timings | None = None
        match event:
            case PromptProgress():
                return self._tell_progress(event)
            case Started():
                self.started = event
            case TextDelta():
                self.predicted += len(event.tokens)
                if self._with_each and self.started is not None:
                    timings = _timings(self.started, self.predicted, time.monotonic())
            case Finished() if self.started is not None:
                timings = timings_of(self.started, event)
        return {} if timings is None else {"timings": timings}

    def _tell_progress(self, event: PromptProgress) -> Mapping[str, object]:
        now = time.monotonic()
        self._begun = self._begun or now
        seconds = now - self._begun
        progress = {
            "total": event.prompt_tokens,
            "cache": event.cached_tokens,
            "processed": event.processed_tokens,
            "time_ms": 1000 * seconds,
        }
        if not self._with_each:
            return {"prompt_progress": progress}
        timings = _rates(event.cached_tokens, event.processed_tokens - event.cached_tokens, seconds, 0, 0.0)
        return {"prompt_progress": progress, "timings": timings}


def timings_of(started: Started, finished: Finished, ended: float | None = None) -> Timings | None:
    """Return the times of a request that ended at `ended`, by `time.monotonic`, or now; None where none were taken."""
    timings = _timings(started, finished.completion_tokens, time.monotonic() if ended is None else ended)
    if timings is not None and finished.draft_tokens > 0:
        timings["draft_n"], timings["draft_n_accepted"] = finished.draft_tokens, finished.accepted_tokens
    return timings


def _timings(started: Started, predicted_tokens: int, now: float) -> Timings | None:
    timing = started.timing
    if timing is None:
        return None
    prompt_tokens = started.prompt_tokens - started.cached_tokens
    prompt_seconds, predicted_seconds = timing.first_token - timing.started, max(now - timing.first_token, 0.0)
    return _rates(started.cached_tokens, prompt_tokens, prompt_seconds, predicted_tokens, predicted_seconds)


def _rates(
    cached_tokens: int, prompt_tokens: int, prompt_seconds: float, predicted_tokens: int, predicted_seconds: float
) -> Timings:
    predicted_steps = max(predicted_tokens - 1, 0)  # the first token came with the prompt
    return {
        "cache_n": cached_tokens,
        "prompt_n": prompt_tokens,
        "prompt_ms": prompt_seconds * 1000,
        "prompt_per_token_ms": _ratio(prompt_seconds * 1000, prompt_tokens),
        "prompt_per_second": _ratio(prompt_tokens, prompt_seconds),
        "predicted_n": predicted_tokens,
        "predicted_ms": predicted_seconds * 1000,
        "predicted_per_token_ms": _ratio(predicted_seconds * 1000, predicted_steps),
        "predicted_per_second": _ratio(predicted_steps, predicted_seconds),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
