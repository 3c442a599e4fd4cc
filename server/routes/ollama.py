"""Ollama's API: chats, generations and what is told of models."""

from __future__ import annotations

import time

from aiohttp import web

from rnn_engine.errors import InvalidRequestError
from server.answer import answer_in
from server.formatting.ollama import LINES, OllamaDialect, encode_line, ollama_error
from server.formatting.ollama_models import model_facts, ollama_model, running_model
from server.http.bodies import json_response, long_json_response, read_body
from server.http.context import MODELS, SETTINGS, engine_of
from server.http.routing import Route
from server.routes.chat import prepare_chat
from server.routes.completions import prepare_completions
from server.routes.embeddings import find_vectors
from server.schemas.completions import CompletionRequest
from server.schemas.ollama.answer import OllamaChat, OllamaModelFacts, OllamaModels, OllamaText, OllamaVersion
from server.schemas.ollama.embedding import Embedded, EmbedRequest, OlderEmbedded, OlderEmbedRequest
from server.schemas.ollama.generation import OllamaChatRequest, OllamaGenerateRequest, ShowRequest

_VERSION = "0.12.0"


async def chat(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, OllamaChatRequest)
    engine = engine_of(request, body.cache_salt)
    if body.translated is None:
        return _loaded(OllamaDialect(engine.info, None, "message"), stream=body.stream)
    calls, form, resolved = await prepare_chat(request, engine, body.translated)
    dialect = OllamaDialect(engine.info, form, "message")
    return await answer_in(dialect, request, body.translated, calls, resolved, stream_type=LINES)


async def generate(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, OllamaGenerateRequest)
    engine = engine_of(request, body.cache_salt)
    match body.translated:
        case None:
            return _loaded(OllamaDialect(engine.info, None, "response"), stream=body.stream)
        case CompletionRequest() as translated:
            calls, resolved = await prepare_completions(request, engine, translated)
            dialect = OllamaDialect(engine.info, None, "response")
        case translated:
            calls, form, resolved = await prepare_chat(request, engine, translated)
            dialect = OllamaDialect(engine.info, form, "response")
    return await answer_in(dialect, request, translated, calls, resolved, stream_type=LINES)


async def embed(request: web.Request) -> web.Response:
    begun = time.monotonic_ns()
    found = await find_vectors(request, await read_body(request, EmbedRequest))

    def make() -> Embedded:
        return {
            "model": found.model,
            "embeddings": [one.vector.tolist() for one in found.embeddings],
            "total_duration": time.monotonic_ns() - begun,
            "load_duration": 0,
            "prompt_eval_count": sum(cost.prompt_tokens for cost in found.costs),
        }

    return await long_json_response(request, sum(one.vector.size for one in found.embeddings), make)


async def older_embed(request: web.Request) -> web.Response:
    body = await read_body(request, OlderEmbedRequest)
    if len(body.input) != 1:
        raise InvalidRequestError("prompt", len(body.input), "one text")
    [one] = (await find_vectors(request, body)).embeddings
    return await long_json_response(request, one.vector.size, lambda: {"embedding": one.vector.tolist()})


def _loaded(dialect: OllamaDialect, *, stream: bool) -> web.Response:
    """Answer a request that only loads the model, which has been done."""
    answer = dialect.empty()
    return web.Response(body=encode_line(answer), content_type=LINES) if stream else json_response(answer)


async def tags(request: web.Request) -> web.Response:
    models = [ollama_model(model, model.info) for model in request.app[MODELS] if model.info is not None]
    return json_response({"models": models})


async def ps(request: web.Request) -> web.Response:
    models = [
        running_model(model, model.info)
        for model in request.app[MODELS]
        if model.info is not None and model.status == "loaded"
    ]
    return json_response({"models": models})


async def show(request: web.Request) -> web.Response:
    await read_body(request, ShowRequest)
    return json_response(model_facts(engine_of(request).info, request.app[SETTINGS].limits.max_prompt_tokens))


async def version(_request: web.Request) -> web.Response:
    return json_response({"version": _VERSION})


ROUTES = (
    Route(
        "POST",
        "/api/chat",
        chat,
        "Continue a conversation, as Ollama does. Errors of all of its routes come in its words, too.",
        OllamaChat,
        request=OllamaChatRequest,
        chunk=OllamaChat,
        stream_type=LINES,
        error_form=ollama_error,
    ),
    Route(
        "POST",
        "/api/generate",
        generate,
        "Answer or continue a text, as Ollama does.",
        OllamaText,
        request=OllamaGenerateRequest,
        chunk=OllamaText,
        stream_type=LINES,
        error_form=ollama_error,
    ),
    Route(
        "POST",
        "/api/embed",
        embed,
        "Vectors of texts, as Ollama gives them.",
        Embedded,
        request=EmbedRequest,
        error_form=ollama_error,
    ),
    Route(
        "POST",
        "/api/embeddings",
        older_embed,
        "The vector of one text, as older clients of Ollama ask for it.",
        OlderEmbedded,
        request=OlderEmbedRequest,
        error_form=ollama_error,
    ),
    Route(
        "POST",
        "/api/show",
        show,
        "What a model is, as Ollama tells it.",
        OllamaModelFacts,
        request=ShowRequest,
        error_form=ollama_error,
    ),
    Route(
        "GET",
        "/api/tags",
        tags,
        "The models that are served, as Ollama lists them.",
        OllamaModels,
        uses_model=False,
        error_form=ollama_error,
    ),
    Route(
        "GET",
        "/api/ps",
        ps,
        "The models that are loaded, as Ollama lists them.",
        OllamaModels,
        uses_model=False,
        error_form=ollama_error,
    ),
    Route(
        "GET",
        "/api/version",
        version,
        "The version of Ollama whose API this is.",
        OllamaVersion,
        uses_model=False,
        error_form=ollama_error,
    ),
)
