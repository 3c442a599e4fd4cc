"""Embeddings of texts."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from rnn_engine.checks import check_token_ids
from rnn_engine.errors import InvalidRequestError
from rnn_engine.interface import EngineLike
from rnn_engine.operations.cost import Cost
from rnn_engine.operations.embedding import embed, find_centre
from server.formatting.usage import usage_of
from server.formatting.vectors import VectorEntry, send_vectors
from server.http.bodies import read_body
from server.http.context import SETTINGS, engine_of
from server.http.routing import Route
from server.http.work import work
from server.schemas.embeddings import EmbeddingList, EmbeddingsRequest
from server.schemas.prompt import AnyPrompt, tokens_of
from server.state.resolve import resolve_initial_state


async def embeddings(request: web.Request) -> web.StreamResponse:
    return await answer_vectors(request, await read_body(request, EmbeddingsRequest))


async def answer_vectors(request: web.Request, body: EmbeddingsRequest) -> web.StreamResponse:
    """Answer with the vectors that `body` wants."""
    engine = engine_of(request, body.cache_salt)
    shape = engine.info.shape
    settings = body.settings
    settings.check(shape)
    inputs = await tokens_of_inputs(request, engine, "input", body.input, settings.dimensions or settings.size(shape))
    initial_state = await resolve_initial_state(engine, body.state)
    costs: list[Cost] = []
    centre = None
    if body.center_on:
        others = await tokens_of_inputs(request, engine, "center_on", body.center_on, settings.size(shape))
        centre, costs = await find_centre(engine, others, settings, initial_state=initial_state)
    begun = centre is not None
    found = await embed(engine, inputs, settings, initial_state=initial_state, centre=centre, wait_for_room=begun)
    entries = [
        VectorEntry({"object": "embedding", "index": index}, "embedding", embedding.vector)
        for index, embedding in enumerate(found)
    ]
    usage = usage_of([*costs, *(embedding.cost for embedding in found)])
    return await send_vectors(request, engine.info.model, entries, body.encoding_format, usage)


async def tokens_of_inputs(
    request: web.Request, engine: EngineLike, field: str, prompts: Sequence[AnyPrompt], numbers_each: int
) -> list[Sequence[int]]:
    """Return the tokens of the prompts. Raises InvalidRequestError, also for too many numbers in one answer."""
    limits = request.app[SETTINGS].limits
    fitting = max(limits.max_vector_numbers // numbers_each, 1)
    if len(prompts) > fitting:
        allowed = f"at most {fitting} inputs of {numbers_each} numbers each (max_vector_numbers)"
        raise InvalidRequestError(field, len(prompts), allowed)

    def tokenize() -> list[Sequence[int]]:
        return [_tokens(engine, f"{field}.{number}", prompt) for number, prompt in enumerate(prompts)]

    inputs = await work(request, sum(map(len, prompts)), tokenize)
    limits.check("max_prompt_tokens", field, sum(map(len, inputs)))
    return inputs


def _tokens(engine: EngineLike, field: str, prompt: AnyPrompt) -> Sequence[int]:
    tokens = tokens_of(engine, prompt)
    if not tokens:
        raise InvalidRequestError(field, prompt if isinstance(prompt, str) else [], "at least one token")
    check_token_ids(f"{field} token", tokens, engine.info.shape.vocab_size)
    return tokens


ROUTES = (
    Route(
        "POST",
        "/v1/embeddings",
        embeddings,
        "Vectors of texts or tokens, from the states after them.",
        EmbeddingList,
        request=EmbeddingsRequest,
        ai00_paths=False,
    ),
)
