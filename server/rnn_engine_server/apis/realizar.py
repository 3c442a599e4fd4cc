"""realizar's routes: generate for batches of prompts, tokenize, and report if the device is ready."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, ClassVar, Literal

from pydantic import FailFast, Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError
from rnn_engine.interface import EngineInfo
from rnn_engine.requests import GenerateRequest
from rnn_engine_server.apis.common.answering import Dialect, Outcome, Prepared
from rnn_engine_server.apis.common.generation import INPUTS
from rnn_engine_server.apis.openai.completions import prepare_completions
from rnn_engine_server.apis.openai.schemas import CompletionRequest
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import Answer, Long, RouteTable
from rnn_engine_server.core.schema import RequestBody


class BatchCompletionRequest(CompletionRequest):
    """A request to continue several prompts as one batch, with realizar's field names.

    The fields of completions mean the same here.
    """

    neutral: ClassVar = {"prompt_logprobs": (0,)}
    aliases: ClassVar = {"prompts": "prompt"}


class BatchResult(TypedDict):
    index: int
    text: str
    prompt_tokens: int
    completion_tokens: int
    tokens_generated: int
    finish_reason: Literal["stop", "length"]
    seed: int


class BatchStatistics(TypedDict):
    """Statistics of a batch of prompts.

    `batch_size` counts the answers; as many as there are slots run in one forward pass.
    """

    batch_size: int
    gpu_used: bool
    total_tokens: int
    processing_time_ms: float
    throughput_tps: float


class BatchCompletion(TypedDict):
    """The answers to a batch of prompts: one entry for each answer, prompt by prompt."""

    results: list[BatchResult]
    stats: BatchStatistics


class WarmUp(TypedDict):
    success: Literal[True]
    memory_bytes: int | None
    num_layers: int
    message: str


class GpuStatus(TypedDict):
    """The status of the device that runs the model.

    `cache_ready` is true while the model runs; `batch_threshold` is the number of slots.
    """

    cache_ready: bool
    gpu_used: bool
    device: str
    status: str
    cache_memory_bytes: int | None
    batch_threshold: int
    recommended_min_batch: Literal[1]


class BatchTokenizeRequest(RequestBody):
    """A request to tokenize several texts."""

    ignored: ClassVar = frozenset({"model", "model_id"})

    texts: Annotated[list[str], FailFast(), INPUTS] = Field(min_length=1, description="The texts.")


class TokenizedText(TypedDict):
    token_ids: list[int]
    num_tokens: int


class BatchTokens(TypedDict):
    """The answer with the tokens of several texts: one entry for each text."""

    results: list[TokenizedText]


class BatchDialect(Dialect[BatchCompletionRequest]):
    """Makes realizar's answer to a batch of prompts, which is no stream."""

    def __init__(self, prepared: Prepared[BatchCompletionRequest]) -> None:
        super().__init__(prepared)
        self._begun = time.monotonic()

    def whole(self, kept: Sequence[int], extra: Mapping[str, object]) -> Mapping[str, object]:
        seconds = max(outcome.ended for outcome in self.outcomes) - self._begun
        total = sum(outcome.num_tokens for outcome in self.outcomes)
        answer: BatchCompletion = {
            "results": [_result(index, self.outcomes[place]) for index, place in enumerate(kept)],
            "stats": {
                "batch_size": len(self.outcomes),
                "gpu_used": uses_gpu(self.engine.info),
                "total_tokens": total,
                "processing_time_ms": seconds * 1000,
                "throughput_tps": total / seconds if seconds > 0 else 0.0,
            },
        }
        return {**answer, **extra}


def uses_gpu(info: EngineInfo) -> bool:
    """Return True if a model runs on a device other than the CPU."""
    return info.device_bytes is not None


def _result(index: int, outcome: Outcome) -> BatchResult:
    return {
        "index": index,
        "text": outcome.text,
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.num_tokens,
        "tokens_generated": outcome.num_tokens,
        "finish_reason": outcome.end.reason,
        "seed": outcome.end.seed,
    }


# realizar's routes: batches of prompts, and whether the device is ready.


ROUTES = RouteTable()


@ROUTES.post("/v1/batch/completions", answer=BatchCompletion)
async def batch_completions(call: Call, body: BatchCompletionRequest) -> Answer:
    """Continue several prompts as one batch, as realizar does. Here they really run in one forward pass."""
    if body.stream:
        raise InvalidRequestError("stream", True, "false, since a batch is answered as a whole")
    return await BatchDialect(await prepare_completions(call, body)).answer()


@ROUTES.post("/v1/batch/tokenize", "/batch/tokenize")
async def batch_tokenize(call: Call, body: BatchTokenizeRequest) -> Long[BatchTokens]:
    """The tokens of several texts."""
    engine, limits = call.engine, call.limits

    def make() -> BatchTokens:
        lists = [engine.tokenize(text) for text in body.texts]
        limits.check("max_prompt_tokens", "texts", sum(map(len, lists)))
        return {"results": [{"token_ids": tokens, "num_tokens": len(tokens)} for tokens in lists]}

    return Long(sum(map(len, body.texts)), make)


@ROUTES.post("/v1/gpu/warmup")
async def warm_up(call: Call) -> WarmUp:
    """Run one token, so that the next request does not wait for preparations."""
    engine = call.engine
    async with aclosing(engine.generate(GenerateRequest((engine.info.end_of_text,), max_tokens=0))) as events:
        async for _ in events:
            pass
    info = engine.info
    return {
        "success": True,
        "memory_bytes": info.device_bytes,
        "num_layers": info.shape.num_layers,
        "message": f"{info.model} runs on {info.device}; its weights were put there when it was loaded",
    }


@ROUTES.get("/v1/gpu/status")
async def gpu_status(call: Call) -> GpuStatus:
    """Whether the model's device answers."""
    engine = call.engine
    info, health = engine.info, engine.health()
    return {
        "cache_ready": health.status == "ok",
        "gpu_used": uses_gpu(info),
        "device": info.device,
        "status": health.status,
        "cache_memory_bytes": info.device_bytes,
        "batch_threshold": info.num_slots,
        "recommended_min_batch": 1,
    }
