"""Batches answered as realizar does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rnn_engine.interface import EngineInfo
from server.formatting.choices import Outcome
from server.schemas.realizar import BatchCompletion, BatchResult
from server.schemas.usage import Usage


class BatchDialect:
    """The `WholeDialect` of realizar's batches."""

    def __init__(self, info: EngineInfo) -> None:
        self._info = info
        self._begun = time.monotonic()

    def whole(
        self,
        kept: Sequence[int],
        outcomes: Sequence[Outcome],
        usage: Usage,  # noqa: ARG002
        extra: Mapping[str, object],
    ) -> Mapping[str, object]:
        seconds = max(outcome.ended for outcome in outcomes) - self._begun
        total = sum(outcome.end.completion_tokens for outcome in outcomes)
        answer: BatchCompletion = {
            "results": [_result(index, outcomes[place]) for index, place in enumerate(kept)],
            "stats": {
                "batch_size": len(outcomes),
                "gpu_used": uses_gpu(self._info),
                "total_tokens": total,
                "processing_time_ms": seconds * 1000,
                "throughput_tps": total / seconds if seconds > 0 else 0.0,
            },
        }
        return {**answer, **extra}


def uses_gpu(info: EngineInfo) -> bool:
    """Return whether a model runs on a device of its own."""
    return info.device_bytes is not None


def _result(index: int, outcome: Outcome) -> BatchResult:
    assert outcome.started is not None
    generated = outcome.end.completion_tokens
    return {
        "index": index,
        "text": outcome.text,
        "prompt_tokens": outcome.started.prompt_tokens,
        "completion_tokens": generated,
        "tokens_generated": generated,
        "finish_reason": outcome.end.reason,
        "seed": outcome.end.seed,
    }
