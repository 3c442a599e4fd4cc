"""Routes to inspect the cache of prompts and answers, and to drop entries from it."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError
from rnn_engine_server.apis.common.owned import Deleted, deleted
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.bodies import query_count
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import RefusalError
from rnn_engine_server.core.handlers import Long, RouteTable
from rnn_engine_server.core.routing import MODEL_QUERY
from rnn_engine_server.core.schema import described
from rnn_engine_states.cache.browse import HEAD_TOKENS, TreeNode, TreeQuery
from rnn_engine_states.cache.config import CacheStats

KindName = Literal["prompt_end", "turn", "branch", "mark", "generation_end", "waypoint"]
MissName = Literal[
    "no_paths", "unknown_prompt", "no_checkpoint", "no_logits", "beyond_limit", "evicted", "not_fetched", "damaged"
]


class CacheTotals(TypedDict):
    """Counts of the cache since its start. Each prompt is looked up once; after an exact hit none of it was run.

    `misses` are counted by reason. `index_bytes` is the host memory that the index takes, at most `index_capacity`:
    tokens, records, and the logits of states on the device (`device_logits_bytes`), but not the states themselves.
    """

    look_ups: int
    hits: int
    exact_hits: int
    tokens_looked_up: int
    tokens_saved: int
    misses: dict[MissName, int]
    checkpoints: int
    path_marks: int
    not_stored: int
    writes_refused: int
    lost_files: int
    failed_writes: int
    device_logits_bytes: int
    index_bytes: int
    index_capacity: int


class CacheTier(TypedDict):
    """One tier of the cache (`device`, `host` or `disk`): its contents, and how many copies came and went.

    `capacity` and `used` are bytes. A hit promotes a copy to a quicker tier; an eviction demotes it to a slower one.
    """

    tier: str
    capacity: int
    used: int
    copies: int
    hits: int
    stored: int
    promotions: int
    demotions: int
    evictions: int


class CacheNode(TypedDict):
    """A token position in the tree of cached prompts and answers.

    `id` names it while it is kept. `length` tokens lie before it, and `start` before its `parent`. `text` is the text
    of the tokens between the two; `whole` is false if it is only its beginning. `root` is the digest of the state that
    the prompt started from, or `none`. After a slash follow the name of the API key that may use the position, and a
    hash of the `cache_salt`. `bytes` has the size of the copy in each tier that has one. If it is empty, the state is
    gone and the position only marks a known path. `saves` is how many tokens a hit here need not run beyond those that
    a shorter state saves; `idle_seconds` have passed since the last hit. `match` is false if the position is listed
    only because it lies above a match of the filter. `children` counts all positions directly below it, listed or not.
    """

    id: str
    parent: str | None
    root: str
    start: int
    length: int
    text: str
    whole: bool
    kind: KindName
    bytes: dict[str, int]
    hits: int
    saves: int
    has_logits: bool
    in_use: bool
    idle_seconds: float
    match: bool
    children: int


class Cache(TypedDict):
    """The contents of the cache of prompts and answers, with its counts.

    `enabled` is false, and `totals` null, if the server has no cache.
    """

    object: Literal["cache"]
    enabled: bool
    totals: CacheTotals | None
    tiers: list[CacheTier]
    nodes: list[CacheNode]


class CacheTreeList(TypedDict):
    """A part of the tree of cached prompts and answers, as a list of its positions.

    `nodes` are listed from the roots down, the last used first among siblings. `total` is the number of positions in
    the tree, those without a state included. `truncated` is true if the list lacks some of the requested positions,
    because there are too many or they lie too deep.
    """

    object: Literal["cache.tree"]
    nodes: list[CacheNode]
    total: int
    truncated: bool


class CachePosition(TypedDict):
    """The tokens before a position in the cache, and their text.

    A prompt that begins with these tokens continues from the position.
    """

    object: Literal["cache.position"]
    id: str
    length: int
    tokens: list[int]
    text: str


class CacheDropped(TypedDict):
    """The number of cache positions that were dropped."""

    object: Literal["cache.dropped"]
    dropped: int


def cache_totals(stats: CacheStats) -> CacheTotals:
    """Return the cache's counts since its start, in the form in which clients get them."""
    misses = {reason.value: count for reason, count in stats.misses.items()}
    return described(CacheTotals, stats, misses=misses, path_marks=stats.ghosts)


_DEFAULT_NODES, _MOST_NODES = 100, 1000
_NODES_QUERY = {"limit": f"How many positions to list: {_DEFAULT_NODES} by default, at most {_MOST_NODES}."}


ROUTES = RouteTable()


@ROUTES.get("/v1/cache", query=_NODES_QUERY)
async def get_cache(call: Call) -> Cache:
    """What the cache keeps of prompts and answers: counts, tiers, and the positions that were hit most."""
    engine = call.engine
    limit = query_count(call, "limit", _DEFAULT_NODES, _MOST_NODES)
    found = await engine.cache_tree(TreeQuery(limit=limit, by_hits=True))
    stats = engine.cache_stats()
    return {
        "object": "cache",
        "enabled": stats is not None,
        "totals": None if stats is None else cache_totals(stats),
        "tiers": [] if stats is None else [described(CacheTier, tier) for tier in stats.tiers],
        "nodes": list(map(_node, found.nodes)),
    }


@ROUTES.delete("/v1/cache", scope=Scope.ADMIN)
async def drop_cache(call: Call) -> CacheDropped:
    """Forget every kept position that is not in use."""
    return {"object": "cache.dropped", "dropped": await call.engine.drop_cache()}


_DEFAULT_TREE, _MOST_LEVELS, _MOST_TEXT = 200, 1000, 200
_TREE_QUERY = {
    **MODEL_QUERY,
    "text": "Only positions whose text contains this, in upper or lower case, and the positions above them; at most "
    f"{_MOST_TEXT} characters.",
    "under": "The id of a position: only this position and those below it.",
    "depth": "How many levels below the first ones to list; without it, all.",
    "limit": f"How many positions to list, the most recently used ones: {_DEFAULT_TREE} by default, at most "
    f"{_MOST_NODES}.",
}


@ROUTES.get("/v1/cache/tree", query=_TREE_QUERY, scope=Scope.ADMIN, routine=True)
async def get_tree(call: Call) -> Long[CacheTreeList]:
    """The kept prompts and answers as a tree, with the beginnings of their texts."""
    engine, query = call.engine, _query(call)
    found = await engine.cache_tree(query)

    def make() -> CacheTreeList:
        nodes = list(map(_node, found.nodes))
        return {"object": "cache.tree", "nodes": nodes, "total": found.num_positions, "truncated": found.truncated}

    return Long(len(found.nodes) * HEAD_TOKENS, make)


@ROUTES.get("/v1/cache/positions/{id}", query=MODEL_QUERY, scope=Scope.ADMIN)
async def get_position(call: Call) -> Long[CachePosition]:
    """All tokens before a kept position, and their text."""
    engine, position = call.engine, call.parameters["id"]
    tokens = await engine.cache_tokens(position)
    return Long(
        len(tokens),
        lambda: {
            "object": "cache.position",
            "id": position,
            "length": len(tokens),
            "tokens": tokens,
            "text": engine.detokenize(tokens).decode(errors="replace"),
        },
    )


@ROUTES.delete("/v1/cache/positions/{id}", query=MODEL_QUERY, scope=Scope.ADMIN)
async def drop_position(call: Call) -> Deleted:
    """Forget one kept position; 409 if it is in use."""
    position = call.parameters["id"]
    if not await call.engine.drop_cache_position(position):
        raise RefusalError(409, f"the kept position {position!r} is in use; drop it when its requests have ended")
    return deleted(position, "cache.position.deleted")


def _query(call: Call) -> TreeQuery:
    text = call.query.get("text", "")
    if len(text) > _MOST_TEXT:
        raise InvalidRequestError("text", text, f"at most {_MOST_TEXT} characters")
    return TreeQuery(
        text=text,
        under=call.query.get("under"),
        depth=query_count(call, "depth", _MOST_LEVELS, _MOST_LEVELS),
        limit=query_count(call, "limit", _DEFAULT_TREE, _MOST_NODES),
    )


def _node(node: TreeNode) -> CacheNode:
    position = node.position
    return described(
        CacheNode,
        position,
        parent=node.parent,
        start=node.start,
        text=node.text,
        whole=node.is_whole,
        kind=position.kind.value,
        bytes=position.sizes,
        idle_seconds=round(position.idle_seconds, 1),
        match=node.is_match,
        children=node.num_children,
    )
