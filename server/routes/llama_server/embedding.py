"""Embeddings as llama-server's own route gives them: a list of lists of vectors."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from rnn_engine.operations.embedding import Embedding
from server.http.bodies import long_json_response, read_body
from server.http.routing import Route
from server.routes.embeddings import find_vectors
from server.schemas.llama_server.embedding import LlamaEmbedding, LlamaEmbeddingRequest


async def embedding(request: web.Request) -> web.Response:
    body = await read_body(request, LlamaEmbeddingRequest)
    found = await find_vectors(request, body.model_copy(update={"normalize": body.normalizes}), each=body.per_token)
    numbers = sum(one.vector.size for one in found.embeddings)
    return await long_json_response(request, numbers, lambda: _entries(found.embeddings, found.sizes))


def _entries(embeddings: Sequence[Embedding], sizes: Sequence[int]) -> list[LlamaEmbedding]:
    """Return an entry for each input, to which `sizes` of the embeddings belong, one input after the other."""
    vectors = iter(embeddings)
    return [
        {"index": index, "embedding": [next(vectors).vector.tolist() for _ in range(size)]}
        for index, size in enumerate(sizes)
    ]


ROUTES = (
    Route(
        "POST",
        "/embedding",
        embedding,
        "The vectors of texts or tokens, as llama-server's own route gives them.",
        list[LlamaEmbedding],
        request=LlamaEmbeddingRequest,
        also=("/embeddings",),
    ),
)
