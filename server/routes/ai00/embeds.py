"""Vectors of an embedding model that is no RWKV, as ai00 has them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp import web

from rnn_engine.embedder import Embedder
from server.http.bodies import long_json_response, read_body
from server.http.context import EMBEDDER, SETTINGS
from server.http.routing import Route
from server.http.work import work
from server.schemas.ai00.embeds import MOST_TOKENS, EmbeddedChunk, Embeds, EmbedsRequest

_AT_A_TIME = 8  # pieces, between which the request may be cancelled


async def embeds(request: web.Request) -> web.Response:
    body = await read_body(request, EmbedsRequest)
    embedder = request.app.get(EMBEDDER)
    if embedder is None:
        raise web.HTTPNotImplemented(
            text="this server has no embedding model; its operator can name one with --embed-model. "
            "/v1/embeddings makes vectors with the RWKV model itself"
        )
    max_tokens = min(max(body.max_tokens, 1), MOST_TOKENS)
    pieces = await work(request, len(body.input), lambda: embedder.split(body.input, max_tokens))
    limits = request.app[SETTINGS].limits
    limits.check("max_inputs", "input", len(pieces))
    chunks: list[EmbeddedChunk] = []
    for start in range(0, len(pieces), _AT_A_TIME):
        chunks += await asyncio.to_thread(_embed, embedder, body.prefix, pieces[start : start + _AT_A_TIME])

    def make() -> Embeds:
        return {
            "object": "embeds",
            "model": embedder.name,
            "data": [{"object": "embed", "index": 0, "chunks": chunks}],
        }

    return await long_json_response(request, sum(len(chunk["embed"][0]) for chunk in chunks), make)


def _embed(embedder: Embedder, prefix: str, pieces: Sequence[str]) -> list[EmbeddedChunk]:
    vectors = embedder.embed([prefix + piece for piece in pieces])
    return [{"chunk": piece, "embed": [vector.tolist()]} for piece, vector in zip(pieces, vectors, strict=True)]


ROUTES = (
    Route(
        "POST",
        "/api/oai/embeds",
        embeds,
        "Vectors of the pieces of a text, by an embedding model that is no RWKV (`--embed-model`); 501 without one.",
        Embeds,
        request=EmbedsRequest,
        uses_model=False,
    ),
)
