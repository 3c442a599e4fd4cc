"""The bodies of realizar's routes."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import FailFast, Field
from typing_extensions import TypedDict

from server.limits import Limits
from server.schemas.base import RequestBody
from server.schemas.completions import CompletionRequest
from server.schemas.prompt import check_prompts


class BatchCompletionRequest(CompletionRequest):
    """Prompts to continue as one batch, in realizar's words. The fields of completions mean the same here."""

    aliases: ClassVar = {**CompletionRequest.aliases, "prompts": "prompt"}


class BatchResult(TypedDict):
    index: int
    text: str
    prompt_tokens: int
    completion_tokens: int
    tokens_generated: int
    finish_reason: Literal["stop", "length"]
    seed: int


class BatchStatistics(TypedDict):
    """`batch_size` counts the answers, all of which run in the slots of one forward pass as far as there are any."""

    batch_size: int
    gpu_used: bool
    total_tokens: int
    processing_time_ms: float
    throughput_tps: float


class BatchCompletion(TypedDict):
    """One entry an answer, prompt by prompt."""

    results: list[BatchResult]
    stats: BatchStatistics


class WarmUp(TypedDict):
    success: Literal[True]
    memory_bytes: int | None
    num_layers: int
    message: str


class GpuStatus(TypedDict):
    """`cache_ready` is true as long as the model runs; `batch_threshold` is the number of slots."""

    cache_ready: bool
    gpu_used: bool
    device: str
    status: str
    cache_memory_bytes: int | None
    batch_threshold: int
    recommended_min_batch: Literal[1]


class BatchTokenizeRequest(RequestBody):
    """Texts whose tokens are wanted."""

    ignored: ClassVar = frozenset({"model", "model_id"})

    texts: Annotated[list[str], FailFast()] = Field(min_length=1, description="The texts.")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("max_inputs", "texts", len(self.texts))
        check_prompts(limits, "texts", self.texts)


class TokenizedText(TypedDict):
    token_ids: list[int]
    num_tokens: int


class BatchTokens(TypedDict):
    """One entry a text."""

    results: list[TokenizedText]
