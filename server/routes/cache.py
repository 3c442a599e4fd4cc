"""What is kept of prompts and answers: to be looked at, and to be dropped."""

from __future__ import annotations

from aiohttp import web

from rnn_engine.interface import EngineLike
from server.doors.scopes import Scope
from server.formatting.cache import cache_tier, cache_totals
from server.http.bodies import json_response
from server.http.context import engine_of
from server.http.query import query_count
from server.http.routing import Route
from server.schemas.cache import Cache, CacheDropped, CacheNode
from states.cache.snapshot import SnapshotNode

DEFAULT_NODES = 100
MOST_NODES = 1000


async def get_cache(request: web.Request) -> web.Response:
    engine = engine_of(request)
    limit = query_count(request, "limit", DEFAULT_NODES, MOST_NODES)
    nodes = await engine.cache_nodes(limit) if limit > 0 else ()
    stats = engine.cache_stats()
    body: Cache = {
        "object": "cache",
        "enabled": stats is not None,
        "totals": None if stats is None else cache_totals(stats),
        "tiers": [] if stats is None else [cache_tier(tier) for tier in stats.tiers],
        "nodes": [_node(engine, number, node) for number, node in enumerate(nodes)],
    }
    return json_response(body)


async def drop_cache(request: web.Request) -> web.Response:
    body: CacheDropped = {"object": "cache.dropped", "dropped": await engine_of(request).drop_cache()}
    return json_response(body)


def _node(engine: EngineLike, number: int, node: SnapshotNode) -> CacheNode:
    return {
        "id": number,
        "parent": node.parent,
        "root": node.root,
        "start": node.start,
        "length": node.length,
        "tokens": list(node.head),
        "text": engine.detokenize(node.head).decode(errors="replace"),
        "kind": node.kind.value,
        "bytes": node.sizes,
        "hits": node.hits,
        "saves": node.saves,
        "has_logits": node.has_logits,
        "in_use": node.in_use,
    }


ROUTES = (
    Route(
        "GET",
        "/v1/cache",
        get_cache,
        "What is kept of prompts and answers: counts, tiers, and the positions that were hit most.",
        Cache,
        query={"limit": f"The most positions: {DEFAULT_NODES} where it is absent, at most {MOST_NODES}."},
    ),
    Route(
        "DELETE",
        "/v1/cache",
        drop_cache,
        "Forget every kept position that is not in use.",
        CacheDropped,
        scope=Scope.ADMIN,
    ),
)
