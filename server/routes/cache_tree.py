"""The tree of kept prompts and answers with their texts, and its single positions."""

from __future__ import annotations

from aiohttp import web

from rnn_engine.errors import InvalidRequestError
from server.doors.scopes import Scope
from server.http.bodies import json_response, long_json_response
from server.http.context import engine_of
from server.http.query import query_count
from server.http.routing import MODEL_QUERY, Route
from server.schemas.cache import CachePosition, CachePositionDropped, CacheTreeList, CacheTreeNode
from states.cache.browse import HEAD_TOKENS, TreeNode, TreeQuery

_DEFAULT_NODES, _MOST_NODES, _MOST_LEVELS, _MOST_TEXT = 200, 1000, 1000, 200


async def get_tree(request: web.Request) -> web.Response:
    engine, query = engine_of(request), _query(request)
    found = await engine.cache_tree(query)

    def make() -> CacheTreeList:
        nodes = [_node(node) for node in found.nodes]
        return {"object": "cache.tree", "nodes": nodes, "total": found.num_positions, "truncated": found.truncated}

    return await long_json_response(request, len(found.nodes) * HEAD_TOKENS, make)


async def get_position(request: web.Request) -> web.Response:
    engine, position = engine_of(request), request.match_info["id"]
    tokens = await engine.cache_tokens(position)

    def make() -> CachePosition:
        return {
            "object": "cache.position",
            "id": position,
            "length": len(tokens),
            "tokens": tokens,
            "text": engine.detokenize(tokens).decode(errors="replace"),
        }

    return await long_json_response(request, len(tokens), make)


async def drop_position(request: web.Request) -> web.Response:
    position = request.match_info["id"]
    if not await engine_of(request).drop_cache_position(position):
        raise web.HTTPConflict(text=f"the kept position {position!r} is in use; drop it when its requests have ended")
    answer: CachePositionDropped = {"object": "cache.position.deleted", "id": position, "deleted": True}
    return json_response(answer)


def _query(request: web.Request) -> TreeQuery:
    text = request.query.get("text", "")
    if len(text) > _MOST_TEXT:
        raise InvalidRequestError("text", text, f"at most {_MOST_TEXT} characters")
    return TreeQuery(
        text=text,
        under=request.query.get("under"),
        depth=query_count(request, "depth", _MOST_LEVELS, _MOST_LEVELS),
        limit=query_count(request, "limit", _DEFAULT_NODES, _MOST_NODES),
    )


def _node(node: TreeNode) -> CacheTreeNode:
    position = node.position
    return {
        "id": position.id,
        "parent": node.parent,
        "root": position.root,
        "start": node.start,
        "length": position.length,
        "text": node.text,
        "whole": node.is_whole,
        "kind": position.kind.value,
        "bytes": position.sizes,
        "hits": position.hits,
        "saves": position.saves,
        "has_logits": position.has_logits,
        "in_use": position.in_use,
        "idle_seconds": round(position.idle_seconds, 1),
        "match": node.is_match,
        "children": node.num_children,
    }


_TREE_QUERY = {
    **MODEL_QUERY,
    "text": f"Only positions with this in their text, in any case of its letters, and those above them; at most "
    f"{_MOST_TEXT} characters.",
    "under": "The id of a position: only it and those below it.",
    "depth": "How many levels below the first ones; absent, all.",
    "limit": f"The most positions, those that were used last: {_DEFAULT_NODES} where it is absent, at most "
    f"{_MOST_NODES}.",
}

ROUTES = (
    Route(
        "GET",
        "/v1/cache/tree",
        get_tree,
        "The kept prompts and answers as a tree, with the beginnings of their texts.",
        CacheTreeList,
        query=_TREE_QUERY,
        scope=Scope.ADMIN,
        routine=True,
        ai00_paths=False,
    ),
    Route(
        "GET",
        "/v1/cache/positions/{id}",
        get_position,
        "All that lies before a kept position: its tokens and their text.",
        CachePosition,
        query=MODEL_QUERY,
        scope=Scope.ADMIN,
        ai00_paths=False,
    ),
    Route(
        "DELETE",
        "/v1/cache/positions/{id}",
        drop_position,
        "Forget one kept position; 409 where it is in use.",
        CachePositionDropped,
        query=MODEL_QUERY,
        scope=Scope.ADMIN,
        ai00_paths=False,
    ),
)
