"""Embeddings of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from rnn_engine.checks import check_token_ids
from rnn_engine.errors import InvalidRequestError
from rnn_engine.interface import EngineLike
from rnn_engine.operations.cost import Cost
from rnn_engine.operations.embedding import Embedding, embed, find_centre
from server.formatting.usage import usage_of
from server.formatting.vectors import VectorEntry, send_vectors
from server.http.bodies import read_body
from server.http.context import SETTINGS, engine_of
from server.http.routing import Route
from server.http.work import work
from server.limits import Limits
from server.schemas.embeddings import EmbeddingList, EmbeddingsRequest
from server.schemas.prompt import AnyPrompt, tokens_of
from server.state.resolve import resolve_initial_state


async def embeddings(request: web.Request) -> web.StreamResponse:
    return await answer_vectors(request, await read_body(request, EmbeddingsRequest))


@dataclass(frozen=True, slots=True)
class FoundVectors:
    """The vectors of one call, input by input."""

    model: str
    embeddings: Sequence[Embedding]
    sizes: Sequence[int]  # how many of them each input has
    costs: Sequence[Cost]  # of all that was run


async def answer_vectors(request: web.Request, body: EmbeddingsRequest) -> web.StreamResponse:
    """Answer with the vectors that `body` wants."""
    found = await find_vectors(request, body)
    entries = [
        VectorEntry({"object": "embedding", "index": index}, "embedding", embedding.vector)
        for index, embedding in enumerate(found.embeddings)
    ]
    return await send_vectors(request, found.model, entries, body.encoding_format, usage_of(found.costs))


async def find_vectors(request: web.Request, body: EmbeddingsRequest, *, each: bool = False) -> FoundVectors:
    """Return the vectors that `body` wants, those of the states after `each` token or after the last one.

    Raises InvalidRequestError, also where they are more than the limits allow.
    """
    engine = engine_of(request, body.cache_salt)
    shape = engine.info.shape
    settings = body.settings
    settings.check(shape)
    numbers_each = settings.dimensions or settings.size(shape)
    inputs = await tokens_of_inputs(request, engine, "input", body.input, numbers_each)
    sizes = [len(tokens) if each else 1 for tokens in inputs]
    if each:
        inputs = _beginnings(request.app[SETTINGS].limits, inputs, numbers_each)
    initial_state = await resolve_initial_state(engine, body.state)
    costs: list[Cost] = []
    centre = None
    if body.center_on:
        others = await tokens_of_inputs(request, engine, "center_on", body.center_on, settings.size(shape))
        centre, costs = await find_centre(engine, others, settings, initial_state=initial_state)
    begun = centre is not None
    found = await embed(engine, inputs, settings, initial_state=initial_state, centre=centre, wait_for_room=begun)
    return FoundVectors(engine.info.model, found, sizes, [*costs, *(embedding.cost for embedding in found)])


def _beginnings(limits: Limits, inputs: Sequence[Sequence[int]], numbers_each: int) -> list[Sequence[int]]:
    """Return the tokens of each input up to each of them. Raises InvalidRequestError where they are too many."""
    count = sum(map(len, inputs))
    limits.check("max_inputs", "input", count)
    limits.check("max_vector_numbers", "input", count * numbers_each)
    limits.check("max_prompt_tokens", "input", sum(len(tokens) * (len(tokens) + 1) // 2 for tokens in inputs))
    return [tokens[:end] for tokens in inputs for end in range(1, len(tokens) + 1)]


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
