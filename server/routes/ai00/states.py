"""States after texts, whole or a row of them, under ai00's own paths."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import aclosing

from aiohttp import web

from rnn_engine.operations.cost import Cost
from rnn_engine.operations.embedding import run_states
from server.formatting.usage import usage_of
from server.formatting.vectors import VectorEntry, send_vectors
from server.http.bodies import read_body
from server.http.context import engine_of
from server.http.routing import Route
from server.routes.embeddings import answer_vectors, tokens_of_inputs
from server.schemas.ai00.states import Ai00EmbeddingsRequest, StateList, StatesRequest
from server.schemas.embeddings import EmbeddingList
from server.state.resolve import resolve_initial_state
from states.files.prefab import prefab_dims, rows_from_state


async def states(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, StatesRequest)
    dims = prefab_dims(engine_of(request).info.shape)
    return await _answer_whole(request, body, {"object": "states", "shape": dims}, "data")


async def embeddings(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, Ai00EmbeddingsRequest)
    if body.layer is None:
        return await _answer_whole(request, body, {"object": "embedding"}, "embedding")
    return await answer_vectors(request, body)


async def _answer_whole(
    request: web.Request, body: StatesRequest | Ai00EmbeddingsRequest, fields: Mapping[str, object], name: str
) -> web.StreamResponse:
    """Answer with whole states, in entries that have `fields`, too, and the numbers under `name`."""
    engine = engine_of(request, body.cache_salt)
    shape = engine.info.shape
    inputs = await tokens_of_inputs(request, engine, "input", body.input, math.prod(prefab_dims(shape)))
    initial_state = await resolve_initial_state(engine, body.state)
    entries: dict[int, VectorEntry] = {}
    costs: list[Cost] = []
    async with aclosing(run_states(engine, inputs, initial_state=initial_state)) as ends:
        async for index, end in ends:
            rows = await asyncio.to_thread(rows_from_state, end.state, shape)
            entries[index] = VectorEntry({**fields, "index": index}, name, rows)
            costs.append(end.cost)
    in_order = [entries[index] for index in range(len(inputs))]
    return await send_vectors(request, engine.info.model, in_order, body.encoding_format, usage_of(costs))


ROUTES = (
    Route(
        "POST",
        "/api/oai/states",
        states,
        "The states after texts or tokens, whole, in ai00's order.",
        StateList,
        request=StatesRequest,
    ),
    Route(
        "POST",
        "/api/oai/embeddings",
        embeddings,
        "A row of the states after texts or tokens, as ai00 had it: by default the token shift of a layer.",
        EmbeddingList,
        request=Ai00EmbeddingsRequest,
    ),
)
