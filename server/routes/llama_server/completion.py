"""llama-server's own completions, and what it has beside them that a recurrent model can't do."""

from __future__ import annotations

from aiohttp import web

from server.answer import answer_in
from server.formatting.llama_server import LlamaDialect
from server.http.bodies import read_body
from server.http.context import engine_of
from server.http.routing import Route
from server.routes.completions import prepare_completions
from server.routes.llama_server.slot_actions import note_slot
from server.schemas.error import ErrorBody
from server.schemas.llama_server.completion import LlamaCompletion, LlamaCompletionChunk, LlamaCompletionRequest


async def completion(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, LlamaCompletionRequest)
    engine = engine_of(request, body.cache_salt)
    calls, resolved = await prepare_completions(request, engine, body)
    await note_slot(request, engine, body, calls)
    return await answer_in(LlamaDialect(engine, body), request, body, calls, resolved)


async def infill(request: web.Request) -> web.StreamResponse:  # noqa: ARG001
    raise web.HTTPNotImplemented(
        text="a recurrent model takes a text in from its beginning on and has not learned to fill in what comes before "
        "an end; continue the prefix with /completion"
    )


ROUTES = (
    Route(
        "POST",
        "/completion",
        completion,
        "Continue texts or tokens, as llama-server's own route does.",
        LlamaCompletion,
        request=LlamaCompletionRequest,
        chunk=LlamaCompletionChunk,
        also=("/completions",),
    ),
    Route("POST", "/infill", infill, "Refused with 501 and the reason: RWKV models do not fill in.", ErrorBody),
)
