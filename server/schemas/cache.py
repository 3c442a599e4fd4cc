"""The bodies of /v1/cache."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

KindName = Literal["prompt_end", "turn", "branch", "mark", "generation_end", "waypoint"]
MissName = Literal[
    "no_paths", "unknown_prompt", "no_checkpoint", "no_logits", "beyond_limit", "evicted", "not_fetched", "damaged"
]


class CacheTotals(TypedDict):
    """Counts since the start. A look-up is one prompt; an exact hit ran nothing of it. `misses` are by reason.

    `index_bytes` is what all that is known takes in host memory besides the states themselves, of `index_capacity`:
    tokens, records, and the logits of states on the device (`device_logits_bytes`).
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
    """One place where states are kept (`device`, `host` or `disk`), what it holds and what came and went.

    `capacity` and `used` are bytes. A copy is promoted to a quicker tier by a hit and demoted to a slower one by
    an eviction.
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
    """A position in the tree of kept prompts and answers.

    `length` is how many tokens lie before it, `start` how many before its parent, which is an index in the same list.
    `tokens` are the first ones after `start`, and `text` is theirs. `bytes` has the size of the copy in each tier that
    has one; where it is empty, the state is gone and the position only marks a known path. `saves` is how many tokens a
    hit here need not run beyond those that a shorter state saves. `root` is the digest of what the prompt started from,
    or `none`, and after a slash the name of the key, and a hash of its `cache_salt`, that share the position.
    """

    id: int
    parent: int | None
    root: str
    start: int
    length: int
    tokens: list[int]
    text: str
    kind: KindName
    bytes: dict[str, int]
    hits: int
    saves: int
    has_logits: bool
    in_use: bool


class Cache(TypedDict):
    """What is kept of prompts and answers. `enabled` is false, and `totals` null, where the server keeps nothing."""

    object: Literal["cache"]
    enabled: bool
    totals: CacheTotals | None
    tiers: list[CacheTier]
    nodes: list[CacheNode]


class CacheTreeNode(TypedDict):
    """A position in the tree of kept prompts and answers.

    `id` stands for it as long as it is kept. `length` tokens lie before it; those from `start` on, which is the
    length of its `parent`, begin with `text`, which is `whole` or the first of them. `root` is the digest of what the
    prompt started from, or `none`, and after a slash the name of the key, and a hash of its `cache_salt`, that share
    the position. `bytes` has the size of the copy in each tier that has one; where it is empty, the state is gone and
    the position only marks a known path. `saves` is how many tokens a hit here need not run beyond those that a
    shorter state saves; `idle_seconds` have passed since the last hit. `match` is false for what only lies above a
    match of the filter. `children` counts all positions right below it, told or not.
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


class CacheTreeList(TypedDict):
    """`nodes` are told from the roots down, the last used first among siblings. `total` positions are kept or known;
    `truncated` says that some of those that were asked for are not told, for there are too many or they lie too deep.
    """

    object: Literal["cache.tree"]
    nodes: list[CacheTreeNode]
    total: int
    truncated: bool


class CachePosition(TypedDict):
    """All that lies before a kept position: what a prompt has to begin with to go on from it."""

    object: Literal["cache.position"]
    id: str
    length: int
    tokens: list[int]
    text: str


class CachePositionDropped(TypedDict):
    object: Literal["cache.position.deleted"]
    id: str
    deleted: Literal[True]


class CacheDropped(TypedDict):
    """How many positions were forgotten."""

    object: Literal["cache.dropped"]
    dropped: int
