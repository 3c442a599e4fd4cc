"""Describe what a cache stores: as a tree of prompts with texts, for people, and as hashes, for a fleet's router.

The thread that owns the cache only lists its positions (`list_positions`). Another thread makes the tree and its texts
(`make_tree`).
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter, itemgetter
from threading import Lock

from rnn_engine_states.cache.checkpoint import Checkpoint, CheckpointKind, position_missing
from rnn_engine_states.cache.tree import Place
from rnn_engine_states.tokens import TOKEN_BYTES, unpack

# The summary of a cache: a list of its checkpoints as hashes, called marks, for the router that sends prompts to the
# cache.
#
# A mark is 20 bytes: two hashes and the length. The first hash is of the root, which distinguishes initial states and
# scopes, and of the whole blocks at the beginning of the checkpoint's path. The second is of the first hash and the
# tokens after these blocks. A mark does not reveal the tokens. A reader that passes the version it has gets only the
# changes after it.

BLOCK_TOKENS = 64
MOST_MARKS = 1 << 16  # of the newest checkpoints
MOST_CHANGES = 1 << 14  # that are remembered; a reader that missed more gets all marks

_DIGEST_BYTES = 8
_BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES
_MARK = struct.Struct(f"<{_DIGEST_BYTES}s{_DIGEST_BYTES}sI")


@dataclass(frozen=True, slots=True)
class Mark:
    """A checkpoint's mark, of `BLOCK_TOKENS` at least: its length, and hashes that do not reveal its tokens."""

    blocks: bytes  # hash of its whole blocks
    path: bytes  # hash of all its tokens
    length: int


@dataclass(frozen=True, slots=True)
class SummaryChanges:
    """The changes of a cache's summary since an earlier version: checkpoints added and removed, or all checkpoints.

    Each is given by its packed mark. Packed marks are joined without separators.
    """

    version: int  # to pass to the next call of `changes`
    whole: bool  # `kept` has all marks
    kept: bytes
    lost: bytes = b""


class CacheSummary:
    """A summary of a cache for a fleet's router: the checkpoints, each by hashes of its tokens, and recent changes.

    The hashes and the length of a checkpoint are its mark. `keep` and `lose` are for one thread; `changes` may be
    called on any thread.
    """

    def __init__(self, most_marks: int = MOST_MARKS, most_changes: int = MOST_CHANGES) -> None:
        self._most = most_marks
        self._marks: dict[Checkpoint, bytes] = {}  # the oldest first
        self._log: deque[tuple[bytes, bool]] = deque(maxlen=most_changes)  # a mark, and True if it was added
        self._version = 0  # the number of all changes
        self._lock = Lock()

    def keep(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint to the summary, unless it was added before or is shorter than `BLOCK_TOKENS`."""
        if checkpoint in self._marks or checkpoint.length < BLOCK_TOKENS:
            return
        mark = _pack_mark(checkpoint.root, checkpoint.known_place().tokens())
        with self._lock:
            self._marks[checkpoint] = mark
            self._note(mark, kept=True)
            if len(self._marks) > self._most:
                self._note(self._marks.pop(next(iter(self._marks))), kept=False)

    def lose(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint from the summary because no tier stores it any more. Does nothing if it is not there."""
        if checkpoint in self._marks:
            with self._lock:
                self._note(self._marks.pop(checkpoint), kept=False)

    def changes(self, since: int | None) -> SummaryChanges:
        """Return the summary's changes after version `since`, or all of it if `since` is None or too old."""
        with self._lock:
            missed = -1 if since is None else self._version - since
            if not 0 <= missed <= len(self._log):
                return SummaryChanges(self._version, True, b"".join(self._marks.values()))
            last = dict(islice(self._log, len(self._log) - missed, None))
            version = self._version
        kept, lost = (b"".join(mark for mark, is_kept in last.items() if is_kept is wanted) for wanted in (True, False))
        return SummaryChanges(version, False, kept, lost)

    def _note(self, mark: bytes, *, kept: bool) -> None:
        self._version += 1
        self._log.append((mark, kept))


def unpack_marks(packed: bytes) -> Iterator[Mark]:
    """Yield the marks of checkpoints that are packed in `SummaryChanges.kept` or `SummaryChanges.lost`."""
    return (Mark(*fields) for fields in _MARK.iter_unpack(packed))


def block_digests(root: str, tokens: bytes) -> list[bytes]:
    """Return the hashes of `root` and the first i + 1 whole blocks of packed `tokens`, for each i."""
    digest = _start(root)
    found = []
    for end in range(_BLOCK_BYTES, len(tokens) + 1, _BLOCK_BYTES):
        digest.update(tokens[end - _BLOCK_BYTES : end])
        found.append(digest.digest())
    return found


def path_digest(blocks: bytes, tail: bytes) -> bytes:
    """Return the hash of a token path: of the hash `blocks` of its whole blocks and the packed `tail` after them."""
    return hashlib.blake2b(blocks + tail, digest_size=_DIGEST_BYTES).digest()


def _pack_mark(root: str, tokens: bytes) -> bytes:
    whole = len(tokens) - len(tokens) % _BLOCK_BYTES
    digest = _start(root)
    digest.update(tokens[:whole])
    blocks = digest.digest()
    return _MARK.pack(blocks, path_digest(blocks, tokens[whole:]), len(tokens) // TOKEN_BYTES)


def _start(root: str) -> hashlib.blake2b:
    return hashlib.blake2b(root.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES)


# A tree of positions with their texts, which a query selects.

HEAD_TOKENS = 48
"""How many tokens of a node's text are returned."""

MOST_POSITIONS = 4000  # that are listed: the most recently used
MOST_SEARCHED = 1 << 20  # tokens whose text is searched


@dataclass(frozen=True, slots=True)
class TreeQuery:
    """A query for positions of a cache: the text to search for, the subtree to search, and limits on the result."""

    text: str = ""  # to find in the text after the next shorter position, ignoring case; empty: all
    under: str | None = None  # the id of a position: it and those below
    depth: int | None = None  # levels below `under` or the roots; None = all
    limit: int = 200  # of the most recently used, including those above them
    scope: str | None = None  # of the cache; None = all
    by_hits: bool = False  # only the `limit` positions that have the most hits, and waypoints among them


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A copy of the cache's record of one position on a token path, without its tokens."""

    id: str
    root: str
    length: int
    kind: CheckpointKind
    hits: int
    saves: int  # tokens between the next shorter checkpoint and this one, when it was last inserted or hit
    sizes: dict[str, int]  # bytes by tier; empty for a ghost entry
    has_logits: bool
    in_use: bool  # locked by a request
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One position in the result of a cache query, with the id of its parent and the beginning of its tokens."""

    position: Position
    parent: str | None
    start: int  # tokens before the text: the parent's length
    text: str  # of the first tokens after it
    is_whole: bool  # `text` is all of it
    is_match: bool  # it has the text that was searched for; else it is listed because a match is below it
    num_children: int  # in the result or not


@dataclass(frozen=True, slots=True)
class CacheTree:
    """The result of a cache query: nodes, each before its children, with the most recently used of siblings first."""

    nodes: tuple[TreeNode, ...]
    num_positions: int  # that are known, in the result or not
    truncated: bool  # some matching positions are left out, because of `depth` or of a bound


@dataclass(frozen=True, slots=True)
class Listing:
    """Some positions of a cache at one moment. Made on the thread that owns the cache."""

    places: list[tuple[Checkpoint, Place[Checkpoint]]]
    num_known: int
    now: float  # by the cache's clock


def list_positions(
    checkpoints: Sequence[Checkpoint], now: float, query: TreeQuery, most: int = MOST_POSITIONS
) -> Listing:
    """Return the positions that `query` is about, at most the `most` used last. Only for the cache's thread.

    Waypoints are left out, unless it asks for the positions with the most hits. Of those with equally many, the longer
    ones are listed.
    """
    if query.by_hits:
        told = list(checkpoints)
        listed = sorted(told, key=lambda checkpoint: (-checkpoint.hits, -checkpoint.length))[: query.limit]
    else:
        told = [checkpoint for checkpoint in checkpoints if not checkpoint.is_waypoint]
        listed = sorted(told, key=attrgetter("used"), reverse=True)[:most]
    return Listing([(checkpoint, checkpoint.known_place()) for checkpoint in listed], len(told), now)


def make_tree(listing: Listing, query: TreeQuery, decode: Callable[[Sequence[int]], bytes]) -> CacheTree:
    """Return the positions of a cache listing that match `query`, as a tree with texts.

    `decode` returns the bytes of tokens. Raises NotFoundError if `query.under` is not the id of a listed position. May
    run on any thread while the cache changes, so single numbers may be from neighbouring moments. The time grows with
    the length of the texts that are searched.
    """
    asked = _asked(_spots(listing, decode), query.under)
    matches, searched_all = _search(asked, query.text.lower())
    wanted = set(matches)
    for spot in reversed(asked):  # those below come first
        if spot in wanted and spot.above is not None:
            wanted.add(spot.above)
    levels: dict[_Spot | None, int] = {}
    for spot in asked:
        levels[spot] = levels.get(spot.above, -1) + 1
    found = [spot for spot in asked if spot in wanted]
    told = _bounded([spot for spot in found if query.depth is None or levels[spot] <= query.depth], query.limit)
    nodes = tuple(spot.node(is_match=spot in matches) for spot in _down(told))
    complete = searched_all and len(told) == len(found) and listing.num_known == len(listing.places)
    return CacheTree(nodes, listing.num_known, not complete)


@dataclass(slots=True, eq=False)
class _Spot:
    """A position in the tree of all listed positions. Its text is that of the tokens after the position above it."""

    position: Position
    blocks: tuple[bytes, ...]  # packed tokens from the root on
    above: _Spot | None
    decode: Callable[[Sequence[int]], bytes]
    below: list[_Spot] = field(default_factory=list)

    @property
    def start(self) -> int:
        return 0 if self.above is None else self.above.position.length

    @property
    def num_tokens(self) -> int:
        return self.position.length - self.start

    def node(self, *, is_match: bool) -> TreeNode:
        head = self._between(self.start, min(self.start + HEAD_TOKENS, self.position.length))
        return TreeNode(
            position=self.position,
            parent=None if self.above is None else self.above.position.id,
            start=self.start,
            text=self._text(head),
            is_whole=self.num_tokens <= HEAD_TOKENS,
            is_match=is_match,
            num_children=len(self.below),
        )

    def has(self, wanted: str) -> bool:
        """Return True if the text, in any case, contains `wanted` in lower case, which may begin before it."""
        first = max(self.start - len(wanted.encode()), 0)
        before = len(self._text(self._between(first, self.start)).lower())
        text = self._text(self._between(first, self.position.length)).lower()
        return text.find(wanted, max(before - len(wanted) + 1, 0)) >= 0

    def lies_above(self, root: str, blocks: tuple[bytes, ...]) -> bool:
        """Return True if the position has this root and its tokens are a prefix of the tokens in `blocks`."""
        last = len(self.blocks) - 1
        if self.position.root != root or len(blocks) <= last or blocks[:last] != self.blocks[:last]:
            return False
        return blocks[last].startswith(self.blocks[last])

    def _text(self, tokens: Sequence[int]) -> str:
        return self.decode(tokens).decode(errors="replace")

    def _between(self, start: int, end: int) -> list[int]:
        first, last, pieces = start * TOKEN_BYTES, end * TOKEN_BYTES, []
        for block in self.blocks:
            pieces.append(block[max(first, 0) : max(last, 0)])
            first, last = first - len(block), last - len(block)
        return unpack(b"".join(pieces))


def _spots(listing: Listing, decode: Callable[[Sequence[int]], bytes]) -> list[_Spot]:
    """Return a listing's positions sorted by tokens, so that a stack has those above the current one."""
    found = [(checkpoint.root, place.blocks(), checkpoint, place) for checkpoint, place in listing.places]
    found.sort(key=itemgetter(0, 1))
    spots: list[_Spot] = []
    trail: list[_Spot] = []
    for root, blocks, checkpoint, place in found:
        while trail and not trail[-1].lies_above(root, blocks):
            trail.pop()
        position = Position(
            id=str(checkpoint.id),
            root=root,
            length=place.length,
            kind=checkpoint.kind,
            hits=checkpoint.hits,
            saves=checkpoint.saves,
            sizes=dict(checkpoint.sizes),
            has_logits=checkpoint.has_logits,
            in_use=checkpoint.locks > 0,
            idle_seconds=max(listing.now - checkpoint.used, 0.0),
        )
        spot = _Spot(position, blocks, trail[-1] if trail else None, decode)
        if trail:
            trail[-1].below.append(spot)
        trail.append(spot)
        spots.append(spot)
    return spots


def _asked(spots: list[_Spot], under: str | None) -> list[_Spot]:
    """Return the position `under` and its descendants, or all for None. Raises NotFoundError if unknown."""
    if under is None:
        return spots
    asked = [spot for spot in spots if spot.position.id == under]
    if not asked:
        raise position_missing(under)
    for spot in asked:  # which grows meanwhile
        asked += spot.below
    return asked


def _search(asked: Sequence[_Spot], wanted: str) -> tuple[set[_Spot], bool]:
    """Return the positions with `wanted` in their text, and False if `MOST_SEARCHED` tokens ended the search."""
    if not wanted:
        return set(asked), True
    matches: set[_Spot] = set()
    left = MOST_SEARCHED
    for spot in asked:
        left -= spot.num_tokens
        if left < 0:
            return matches, False
        if spot.has(wanted):
            matches.add(spot)
    return matches, True


def _bounded(near: Sequence[_Spot], limit: int) -> set[_Spot]:
    """Return at most `limit` positions in `near`: the most recently used ones and their ancestors."""
    told: set[_Spot] = set()
    allowed = set(near)
    for spot in sorted(near, key=lambda spot: spot.position.idle_seconds):
        way = []
        above: _Spot | None = spot
        while above is not None and above in allowed and above not in told:
            way.append(above)
            above = above.above
        if len(told) + len(way) <= limit:
            told.update(way)
    return told


def _down(told: set[_Spot]) -> Iterator[_Spot]:
    """Yield positions as a tree, each before its descendants, the most recently used of siblings first."""

    def last_used_last(spots: Iterable[_Spot]) -> list[_Spot]:
        return sorted((spot for spot in spots if spot in told), key=lambda spot: -spot.position.idle_seconds)

    waiting = last_used_last(spot for spot in told if spot.above not in told)
    while waiting:
        spot = waiting.pop()
        yield spot
        waiting += last_used_last(spot.below)
