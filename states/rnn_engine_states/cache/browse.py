"""Describe what a cache stores: as a tree of prompts with texts, for people, and as hashes, for a fleet's router.

The thread that owns the cache only lists its positions (`list_positions`). Another thread makes the tree and its texts
(`make_tree`).
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
    """A checkpoint's mark for a fleet's router: its length, and hashes that identify its tokens without revealing them.

    The checkpoint has at least `BLOCK_TOKENS` tokens.
    """

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
    """Return the hashes of all prefixes of `tokens` in whole blocks. Number i is of `root` and the first i + 1 blocks.

    `tokens` are packed.
    """
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


# A snapshot of the cache: a list of its positions, each with its parent and the sizes of its copies.


@dataclass(frozen=True, slots=True)
class SnapshotNode:
    """One position in a snapshot of a cache: its place among the other positions, its hits and the sizes of its copies.

    A snapshot is a list in which each position comes after its parent.
    """

    parent: int | None  # index in the list of the nearest shorter position that is in it
    root: str
    start: int  # the parent's length
    length: int
    head: tuple[int, ...]  # the first tokens after the parent
    kind: CheckpointKind
    hits: int
    saves: int  # tokens between the next shorter checkpoint and this one, when it was last inserted or hit
    sizes: dict[str, int]  # bytes by tier; empty for a ghost entry
    has_logits: bool
    in_use: bool  # locked by a request


def snapshot(checkpoints: Iterable[Checkpoint], limit: int = 1000, head_tokens: int = 32) -> tuple[SnapshotNode, ...]:
    """Return the `limit` positions of a cache that have the most hits, ordered by root and length.

    Of positions with equally many hits, the longer ones are returned. Each has its first `head_tokens` tokens. For the
    thread that owns the cache.
    """
    ranked = sorted(checkpoints, key=lambda checkpoint: (-checkpoint.hits, -checkpoint.length))
    shown = sorted(ranked[:limit], key=lambda checkpoint: (checkpoint.root, checkpoint.length))
    index = {checkpoint: number for number, checkpoint in enumerate(shown)}
    return tuple(_node(checkpoint, index, head_tokens) for checkpoint in shown)


def _node(checkpoint: Checkpoint, index: dict[Checkpoint, int], head_tokens: int) -> SnapshotNode:
    place = checkpoint.known_place()
    above = next((other for other in place.values_back() if other in index and other is not checkpoint), None)
    start = 0 if above is None else above.length
    head = place.tokens()[start * TOKEN_BYTES : (start + head_tokens) * TOKEN_BYTES]
    return SnapshotNode(
        parent=None if above is None else index[above],
        root=checkpoint.root,
        start=start,
        length=checkpoint.length,
        head=tuple(unpack(head)),
        kind=checkpoint.kind,
        hits=checkpoint.hits,
        saves=checkpoint.saves,
        sizes=dict(checkpoint.sizes),
        has_logits=checkpoint.has_logits,
        in_use=checkpoint.locks > 0,
    )


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


@dataclass(frozen=True, slots=True)
class Position:
    """A copy of the cache's record of one position on a token path. `parent` is the index of its parent in a list."""

    id: str
    parent: int | None
    root: str
    length: int
    blocks: tuple[bytes, ...]  # packed tokens from the root on
    kind: CheckpointKind
    hits: int
    saves: int
    sizes: dict[str, int]
    has_logits: bool
    in_use: bool
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One position in the result of a cache query, with the id of its parent and the beginning of its text."""

    position: Position
    parent: str | None
    start: int  # tokens before the text: the parent's length
    text: str
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
    """The most recently used positions of a cache at one moment. Made on the thread that owns the cache."""

    places: list[tuple[Checkpoint, Place[Checkpoint]]]
    num_known: int
    now: float  # by the cache's clock


def list_positions(checkpoints: Sequence[Checkpoint], now: float, most: int = MOST_POSITIONS) -> Listing:
    """Return the `most` positions of a cache that were used last, as a `Listing`.

    For the thread that owns the cache. Waypoints are left out, since they say nothing about the requests.
    """
    told = [checkpoint for checkpoint in checkpoints if not checkpoint.is_waypoint]
    newest = sorted(told, key=attrgetter("used"), reverse=True)[:most]
    return Listing([(checkpoint, checkpoint.known_place()) for checkpoint in newest], len(told), now)


def make_tree(listing: Listing, query: TreeQuery, decode: Callable[[Sequence[int]], bytes]) -> CacheTree:
    """Return the positions of a cache listing that match `query`, as a tree with texts.

    `decode` returns the bytes of tokens. Raises NotFoundError if `query.under` is not the id of a listed position. May
    run on any thread while the cache changes, so single numbers may be from neighbouring moments. The time grows with
    the length of the texts that are searched.
    """
    positions, num_known = _positions(listing), listing.num_known
    asked = _below(positions, query.under)
    texts = _Texts(positions, decode)
    matches, searched_all = _search(asked, texts, query.text)
    wanted = _with_above(positions, matches, asked)
    levels = _levels(positions, asked)
    near = [one for one in wanted if query.depth is None or levels[one] <= query.depth]
    told = _bounded(positions, near, query.limit)
    children = Counter(position.parent for position in positions)
    nodes = [
        TreeNode(
            position=positions[one],
            parent=None if (above := positions[one].parent) is None else positions[above].id,
            start=texts.start(one),
            text=texts.head(one),
            is_whole=positions[one].length - texts.start(one) <= HEAD_TOKENS,
            is_match=one in matches,
            num_children=children[one],
        )
        for one in _down(positions, told)
    ]
    complete = searched_all and len(told) == len(wanted) and num_known == len(positions)
    return CacheTree(tuple(nodes), num_known, not complete)


class _Texts:
    """Decodes the texts of a cache's positions. A position's text is that of the tokens after its parent position."""

    def __init__(self, positions: Sequence[Position], decode: Callable[[Sequence[int]], bytes]) -> None:
        self._positions = positions
        self._decode = decode

    def start(self, one: int) -> int:
        above = self._positions[one].parent
        return 0 if above is None else self._positions[above].length

    def length(self, one: int) -> int:
        return self._positions[one].length - self.start(one)

    def head(self, one: int) -> str:
        start = self.start(one)
        return self._between(one, start, min(start + HEAD_TOKENS, self._positions[one].length))

    def has(self, one: int, wanted: str) -> bool:
        """Return True if the text of the position with index `one` contains `wanted`, which must be in lower case.

        Case is ignored. A match may begin before the text but must end in it.
        """
        start = self.start(one)
        first = max(start - len(wanted.encode()), 0)
        before = len(self._between(one, first, start).lower())
        text = self._between(one, first, self._positions[one].length).lower()
        return text.find(wanted, max(before - len(wanted) + 1, 0)) >= 0

    def _between(self, one: int, start: int, end: int) -> str:
        packed = b"".join(_cut(self._positions[one].blocks, start * TOKEN_BYTES, end * TOKEN_BYTES))
        return self._decode(unpack(packed)).decode(errors="replace")


def _positions(listing: Listing) -> list[Position]:
    """Return copies of the positions in a cache listing, each after its parent.

    They are sorted by their tokens, so all positions below a position follow it directly. A stack therefore has the
    positions above the current one.
    """
    found = [(checkpoint.root, place.blocks(), checkpoint, place.length) for checkpoint, place in listing.places]
    found.sort(key=itemgetter(0, 1))
    positions: list[Position] = []
    above: list[int] = []
    for root, blocks, checkpoint, length in found:
        while above and not _lies_above(positions[above[-1]], root, blocks):
            above.pop()
        position = Position(
            id=str(checkpoint.id),
            parent=above[-1] if above else None,
            root=root,
            length=length,
            blocks=blocks,
            kind=checkpoint.kind,
            hits=checkpoint.hits,
            saves=checkpoint.saves,
            sizes=dict(checkpoint.sizes),
            has_logits=checkpoint.has_logits,
            in_use=checkpoint.locks > 0,
            idle_seconds=max(listing.now - checkpoint.used, 0.0),
        )
        above.append(len(positions))
        positions.append(position)
    return positions


def _lies_above(position: Position, root: str, blocks: tuple[bytes, ...]) -> bool:
    """Return True if `position` has the root `root` and its tokens are a prefix of the tokens in `blocks`."""
    last = len(position.blocks) - 1
    if position.root != root or len(blocks) <= last or blocks[:last] != position.blocks[:last]:
        return False
    return blocks[last].startswith(position.blocks[last])


def _below(positions: Sequence[Position], under: str | None) -> list[int]:
    """Return the indexes of the position with the id `under` and of its descendants, parents first.

    If `under` is None, return the indexes of all positions.

    Raises NotFoundError if there is no position with the id `under`.
    """
    if under is None:
        return list(range(len(positions)))
    found = {one for one, position in enumerate(positions) if position.id == under}
    if not found:
        raise position_missing(under)
    for one, position in enumerate(positions):
        if position.parent in found:
            found.add(one)
    return sorted(found)


def _search(asked: Sequence[int], texts: _Texts, text: str) -> tuple[set[int], bool]:
    """Return the indexes of the positions in `asked` whose text contains `text`, and True if all texts were searched.

    The search ends early after `MOST_SEARCHED` tokens.
    """
    if not text:
        return set(asked), True
    matches: set[int] = set()
    left, wanted = MOST_SEARCHED, text.lower()
    for one in asked:
        left -= texts.length(one)
        if left < 0:
            return matches, False
        if texts.has(one, wanted):
            matches.add(one)
    return matches, True


def _with_above(positions: Sequence[Position], matches: Iterable[int], asked: Iterable[int]) -> list[int]:
    """Return the indexes `matches` and those of the matching positions' ancestors in `asked`, ancestors first."""
    wanted, allowed = set(matches), set(asked)
    for one in sorted(wanted, reverse=True):
        above = positions[one].parent
        while above is not None and above in allowed and above not in wanted:
            wanted.add(above)
            above = positions[above].parent
    return sorted(wanted)


def _levels(positions: Sequence[Position], asked: Iterable[int]) -> dict[int, int]:
    """Return how many ancestors in `asked` each position in `asked` has, as a dict by the position's index.

    A position without a parent in `asked` has level 0.
    """
    levels: dict[int, int] = {}
    for one in asked:
        above = positions[one].parent
        levels[one] = 0 if above is None or above not in levels else levels[above] + 1
    return levels


def _bounded(positions: Sequence[Position], near: Sequence[int], limit: int) -> set[int]:
    """Return the indexes of at most `limit` positions in `near`: the most recently used ones and their ancestors."""
    told: set[int] = set()
    allowed = set(near)
    for one in sorted(near, key=lambda one: positions[one].idle_seconds):
        way = []
        above: int | None = one
        while above is not None and above in allowed and above not in told:
            way.append(above)
            above = positions[above].parent
        if len(told) + len(way) <= limit:
            told.update(way)
    return told


def _down(positions: Sequence[Position], told: set[int]) -> Iterator[int]:
    """Yield the positions' indexes in `told` in the order of a tree: each position before its descendants.

    Of siblings, the most recently used comes first.
    """
    below: dict[int | None, list[int]] = defaultdict(list)
    for one in told:
        above = positions[one].parent
        below[above if above in told else None].append(one)
    for siblings in below.values():
        siblings.sort(key=lambda one: -positions[one].idle_seconds)
    waiting = below[None]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += below[one]


def _cut(blocks: Sequence[bytes], start: int, end: int) -> Iterator[bytes]:
    """Yield, in pieces, the bytes from offset `start` to `end` of the byte string that `blocks` make when joined."""
    first = 0
    for block in blocks:
        last = first + len(block)
        if last > start and first < end:
            yield block[max(start - first, 0) : end - first]
        first = last
