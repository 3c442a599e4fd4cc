"""The statistics that AstrAI tells."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict


class RecentTask(TypedDict):
    """A request to the engine that has ended. Times are null where it did not come so far; `task_id` is the id of the
    HTTP request, of which there may be several."""

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
    """Counts since the model was loaded; a mean is absent before there is one. `recent_tasks` are those of the API key,
    of all keys where it has the scope `admin`."""

    total_tasks: int
    total_tokens: int
    active_tasks: int
    waiting_queue: int
    avg_ttft_ms: NotRequired[float]
    avg_decode_tps: NotRequired[float]
    avg_e2e_latency_ms: NotRequired[float]
    recent_tasks: NotRequired[list[RecentTask]]
