"""realizar's routes: batches of prompts, and whether the device is ready."""

from __future__ import annotations

from contextlib import aclosing

from aiohttp import web

from rnn_engine.errors import InvalidRequestError
from rnn_engine.requests import BEGINNING, GenerateRequest
from server.answer import answer_whole
from server.formatting.realizar import BatchDialect, uses_gpu
from server.http.bodies import json_response, long_json_response, read_body
from server.http.context import SETTINGS, engine_of
from server.http.routing import Route
from server.routes.completions import prepare_completions
from server.schemas.realizar import (
    BatchCompletion,
    BatchCompletionRequest,
    BatchTokenizeRequest,
    BatchTokens,
    GpuStatus,
    WarmUp,
)


async def batch_completions(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, BatchCompletionRequest)
    if body.stream:
        raise InvalidRequestError("stream", True, "false, since a batch is answered as a whole")
    engine = engine_of(request, body.cache_salt)
    calls, resolved = await prepare_completions(request, engine, body)
    return await answer_whole(BatchDialect(engine.info), request, body, calls, resolved)


async def batch_tokenize(request: web.Request) -> web.Response:
    body = await read_body(request, BatchTokenizeRequest)
    engine, limits = engine_of(request), request.app[SETTINGS].limits

    def make() -> BatchTokens:
        lists = [engine.tokenize(text) for text in body.texts]
        limits.check("max_prompt_tokens", "texts", sum(map(len, lists)))
        return {"results": [{"token_ids": tokens, "num_tokens": len(tokens)} for tokens in lists]}

    return await long_json_response(request, sum(map(len, body.texts)), make)


async def warm_up(request: web.Request) -> web.Response:
    """Run one token, as the first request would."""
    engine = engine_of(request)
    async with aclosing(engine.generate(GenerateRequest(BEGINNING, max_tokens=0))) as events:
        async for _ in events:
            pass
    info = engine.info
    answer: WarmUp = {
        "success": True,
        "memory_bytes": info.device_bytes,
        "num_layers": info.shape.num_layers,
        "message": f"{info.model} runs on {info.device}; its weights were put there when it was loaded",
    }
    return json_response(answer)


async def gpu_status(request: web.Request) -> web.Response:
    engine = engine_of(request)
    info, health = engine.info, engine.health()
    answer: GpuStatus = {
        "cache_ready": health.status == "ok",
        "gpu_used": uses_gpu(info),
        "device": info.device,
        "status": health.status,
        "cache_memory_bytes": info.device_bytes,
        "batch_threshold": info.num_slots,
        "recommended_min_batch": 1,
    }
    return json_response(answer)


ROUTES = (
    Route(
        "POST",
        "/v1/batch/completions",
        batch_completions,
        "Continue several prompts as one batch, as realizar has it; here they truly run in one forward pass.",
        BatchCompletion,
        request=BatchCompletionRequest,
    ),
    Route(
        "POST",
        "/v1/batch/tokenize",
        batch_tokenize,
        "The tokens of several texts.",
        BatchTokens,
        request=BatchTokenizeRequest,
        also=("/batch/tokenize",),
    ),
    Route("POST", "/v1/gpu/warmup", warm_up, "Run one token, so that the next request finds all ready.", WarmUp),
    Route("GET", "/v1/gpu/status", gpu_status, "Whether the model's device answers.", GpuStatus),
)
