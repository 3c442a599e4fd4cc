"""AstrAI's route for statistics of the scheduler. Its other routes are among those of other APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired

from typing_extensions import TypedDict

from rnn_engine.interface import EngineLike
from rnn_engine.telemetry import Histogram, RequestReport
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import RouteTable
from rnn_engine_server.core.routing import MODEL_QUERY
from rnn_engine_server.telemetry.records import RECENT, RecentReport


class RecentTask(TypedDict):
    """The token counts and times of one request to the engine that has ended.

    A time is null if the request ended before it. `task_id` is the id of the HTTP request; several requests to the
    engine may have the same.
    """

    task_id: str
    input_tokens: int
    output_tokens: int
    queue_wait_ms: float | None
    ttft_ms: float | None
    prefill_tps: float | None
    decode_tps: float | None
    decode_avg_ms: float | None
    total_tps: float | None
    e2e_latency_ms: float


class SchedulerStats(TypedDict):
    """Counts and mean times of a model's requests since it was loaded.

    A mean is absent until a request has been measured. `recent_tasks` are those of the API key, or of all keys if it
    has the scope `admin`.
    """

    total_tasks: int
    total_tokens: int
    active_tasks: int
    waiting_queue: int
    avg_ttft_ms: NotRequired[float]
    avg_decode_tps: NotRequired[float]
    avg_e2e_latency_ms: NotRequired[float]
    recent_tasks: NotRequired[list[RecentTask]]


def describe_scheduler(engine: EngineLike, recent: Sequence[RecentReport]) -> SchedulerStats:
    """Return an engine's counts and mean times since its start, with the times of the requests in `recent`."""
    counters, now = engine.counters(), engine.stats()
    answer: SchedulerStats = {
        "total_tasks": sum(counters.outcomes.values()) + now.active + now.queued,
        "total_tokens": counters.generated_tokens,
        "active_tasks": now.active,
        "waiting_queue": now.queued,
    }
    if counters.first_token_seconds.count:
        answer["avg_ttft_ms"] = _mean_ms(counters.first_token_seconds)
    if counters.inter_token_seconds.sum > 0:
        answer["avg_decode_tps"] = round(counters.inter_token_seconds.count / counters.inter_token_seconds.sum, 2)
    if counters.request_seconds.count:
        answer["avg_e2e_latency_ms"] = _mean_ms(counters.request_seconds)
    if recent:
        answer["recent_tasks"] = [_task(each.request_id, each.report) for each in recent]
    return answer


def _mean_ms(seconds: Histogram) -> float:
    return round(seconds.sum / seconds.count * 1000, 2)


def _task(task_id: str, report: RequestReport) -> RecentTask:
    timing, seconds = report.timing, report.ended - report.arrived
    waited = prefilled = decoded = to_first = None
    if timing is not None:
        waited, to_first = timing.started - timing.arrived, timing.first_token - timing.arrived
        prefilled = timing.first_token - timing.started
        decoded = report.ended - timing.first_token
    steps = max(report.completion_tokens - 1, 0)  # the first token came with the prompt
    return {
        "task_id": task_id,
        "input_tokens": report.prompt_tokens,
        "output_tokens": report.completion_tokens,
        "queue_wait_ms": _ms(waited),
        "ttft_ms": _ms(to_first),
        "prefill_tps": _rate(report.prompt_tokens - report.cached_tokens, prefilled),
        "decode_tps": _rate(steps, decoded),
        "decode_avg_ms": None if decoded is None or not steps else round(decoded / steps * 1000, 2),
        "total_tps": _rate(report.prompt_tokens + report.completion_tokens, seconds),
        "e2e_latency_ms": round(seconds * 1000, 2),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)


def _rate(count: int, seconds: float | None) -> float | None:
    return round(count / seconds, 2) if count and seconds else None


ROUTES = RouteTable()


@ROUTES.get("/stats", query=MODEL_QUERY, routine=True)
async def stats(call: Call) -> SchedulerStats:
    """Counts and times of the scheduler, in AstrAI's form."""
    recent = call.app[RECENT].seen_by(call.principal)
    return describe_scheduler(call.engine, recent)
