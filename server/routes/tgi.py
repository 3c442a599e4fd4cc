"""text-generation-inference's routes."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version

from aiohttp import web

from rnn_engine.errors import InvalidRequestError
from server.answer import answer_in
from server.formatting.tgi import TgiDialect, tgi_error
from server.http.bodies import json_response, read_body
from server.http.context import SETTINGS, engine_of
from server.http.routing import EVENTS, Route
from server.routes.completions import prepare_completions
from server.schemas.tgi import TgiAnswer, TgiEvent, TgiInfo, TgiRequest


async def generate(request: web.Request) -> web.StreamResponse:
    return await _answer(request, await read_body(request, TgiRequest))


async def generate_stream(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, TgiRequest)
    return await _answer(request, body.model_copy(update={"stream": True}))


async def _answer(request: web.Request, body: TgiRequest) -> web.StreamResponse:
    _check(body)
    engine = engine_of(request, body.cache_salt)
    calls, resolved = await prepare_completions(request, engine, body)
    if body.truncate is not None:
        calls = [replace(call, prompt=call.prompt[-body.truncate :]) for call in calls]
    return await answer_in(TgiDialect(engine, body), request, body, calls, resolved)


def _check(body: TgiRequest) -> None:
    """Raise InvalidRequestError for what this route does not take."""
    if body.num_prompts != 1:
        raise InvalidRequestError("inputs", f"{body.num_prompts} prompts", "one prompt")
    if body.n != 1:
        raise InvalidRequestError("n", body.n, "1; best_of makes several answers")
    if body.stream and body.copies > 1:
        raise InvalidRequestError("best_of", body.copies, "1 with a stream, since the best is known at the end alone")
    if body.stream and body.decoder_input_details:
        raise InvalidRequestError("decoder_input_details", True, "false with a stream")


async def info(request: web.Request) -> web.Response:
    facts, limits = engine_of(request).info, request.app[SETTINGS].limits
    answer: TgiInfo = {
        "model_id": facts.model,
        "model_sha": None,
        "model_dtype": facts.weights,
        "model_device_type": facts.device,
        "max_concurrent_requests": facts.num_slots + limits.max_queued,
        "max_best_of": 128,
        "max_stop_sequences": limits.max_stop_strings,
        "max_input_length": limits.max_prompt_tokens,
        "max_input_tokens": limits.max_prompt_tokens,
        "max_total_tokens": limits.max_prompt_tokens + limits.max_answer_tokens,
        "max_batch_size": facts.num_slots,
        "version": version("rnn-engine"),
        "router": "rnn-engine",
        "sha": None,
        "docker_label": None,
    }
    return json_response(answer)


ROUTES = (
    Route(
        "POST",
        "/generate",
        generate,
        "Continue a text, as text-generation-inference does.",
        TgiAnswer,
        request=TgiRequest,
        chunk=TgiEvent,
        error_form=tgi_error,
    ),
    Route(
        "POST",
        "/generate_stream",
        generate_stream,
        "The same as a stream.",
        TgiEvent,
        request=TgiRequest,
        content_type=EVENTS,
        error_form=tgi_error,
    ),
    Route("GET", "/info", info, "What text-generation-inference tells of a model.", TgiInfo, error_form=tgi_error),
)
