"""Texts put in order by how well they answer a query, by scoring the query after each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from aiohttp import web

from rnn_engine.interface import EngineLike
from rnn_engine.operations.scoring import Continuation, score_after
from server.formatting.usage import usage_of
from server.http.bodies import long_json_response, read_body
from server.http.context import SETTINGS, engine_of
from server.http.routing import Route
from server.http.work import work
from server.limits import Limits
from server.schemas.llama_server.rerank import RankedDocument, Reranked, RerankRequest, TeiRank
from server.state.resolve import resolve_initial_state

_GAP = "\n\n"  # between a text and the query


async def rerank(request: web.Request) -> web.Response:
    body = await read_body(request, RerankRequest)
    engine = engine_of(request, body.cache_salt)
    size = sum(map(len, body.contexts)) + len(body.query)
    contexts, query = await work(request, size, partial(_tokens, engine, request.app[SETTINGS].limits, body))
    found = await score_after(engine, contexts, query, initial_state=await resolve_initial_state(engine, body.state))
    make = partial(_answer, engine, body, found, len(query))
    return await long_json_response(request, size + sum(map(len, contexts)) + len(query) * len(contexts), make)


def _answer(
    engine: EngineLike, body: RerankRequest, found: Sequence[Continuation], query_tokens: int
) -> Reranked | list[TeiRank]:
    totals = [run.total for run in found]
    ranked = sorted(range(len(found)), key=lambda index: -totals[index])[: body.top_n]
    results = [_entry(body, index, math.exp(totals[index] / query_tokens)) for index in ranked]
    if body.texts is not None:
        return [_tei_entry(result) for result in results]
    answer: Reranked = {
        "object": "list",
        "model": engine.info.model,
        "results": results,
        "usage": usage_of([run.cost for run in found]),
    }
    return answer


def _tokens(engine: EngineLike, limits: Limits, body: RerankRequest) -> tuple[list[list[int]], list[int]]:
    """Return the tokens of each text and of the query. Raises InvalidRequestError where they are too many."""
    query = engine.tokenize(body.query)
    contexts = [engine.tokenize(text + _GAP) for text in body.contexts]
    num_tokens = sum(map(len, contexts)) + len(query) * len(contexts)
    limits.check("max_prompt_tokens", "documents", num_tokens)
    return contexts, query


def _entry(body: RerankRequest, index: int, score: float) -> RankedDocument:
    entry: RankedDocument = {"index": index, "relevance_score": score}
    if body.return_documents or body.return_text:
        entry["document"] = {"text": body.contexts[index]}
    return entry


def _tei_entry(result: RankedDocument) -> TeiRank:
    entry: TeiRank = {"index": result["index"], "score": result["relevance_score"]}
    if "document" in result:
        entry["text"] = result["document"]["text"]
    return entry


ROUTES = (
    Route(
        "POST",
        "/v1/rerank",
        rerank,
        "Put texts in order by how likely they make a query.",
        Reranked | list[TeiRank],
        request=RerankRequest,
        also=("/rerank", "/reranking", "/v1/reranking"),
    ),
)
