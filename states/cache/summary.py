"""A summary of what a cache keeps, for whoever sends prompts to it: a mark for each checkpoint, and changes of them.

A mark is 20 bytes: a hash of the whole blocks that a checkpoint's path begins with and of its root, which tells initial
states and scopes apart; a hash of that and the tokens after them; and the length. It says nothing of the tokens. Only
changes are told to those who say which they know.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from threading import Lock

from states.cache.checkpoint import Checkpoint
from states.tokens import TOKEN_BYTES

BLOCK_TOKENS = 64
MOST_MARKS = 1 << 16  # of the newest checkpoints
MOST_CHANGES = 1 << 14  # that are remembered; whoever has missed more is told all marks

_DIGEST_BYTES = 8
_BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES
_MARK = struct.Struct(f"<{_DIGEST_BYTES}s{_DIGEST_BYTES}sI")


@dataclass(frozen=True, slots=True)
class Mark:
    """One checkpoint of at least a block."""

    blocks: bytes  # hash of its whole blocks
    path: bytes  # hash of all its tokens
    length: int


@dataclass(frozen=True, slots=True)
class SummaryChanges:
    """What has changed since an earlier version, or all marks. Marks are packed one after the other."""

    version: int  # to be told the next time
    whole: bool  # `kept` are all marks that there are
    kept: bytes
    lost: bytes = b""


class CacheSummary:
    """The marks of one cache. `keep` and `lose` are for one thread, `changes` may be called on any."""

    def __init__(self, most_marks: int = MOST_MARKS, most_changes: int = MOST_CHANGES) -> None:
        self._most = most_marks
        self._marks: dict[Checkpoint, bytes] = {}  # the oldest first
        self._log: deque[tuple[bytes, bool]] = deque(maxlen=most_changes)  # a mark, and whether it is kept now
        self._version = 0  # the number of all changes
        self._lock = Lock()

    def keep(self, checkpoint: Checkpoint) -> None:
        """Enter a checkpoint that has a copy. Does nothing for one that is there, or is shorter than a block."""
        if checkpoint in self._marks or checkpoint.length < BLOCK_TOKENS:
            return
        mark = _pack_mark(checkpoint.root, checkpoint.known_place().tokens())
        with self._lock:
            self._marks[checkpoint] = mark
            self._note(mark, kept=True)
            if len(self._marks) > self._most:
                self._note(self._marks.pop(next(iter(self._marks))), kept=False)

    def lose(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint that has no copy any more. Does nothing for one that is not there."""
        if checkpoint in self._marks:
            with self._lock:
                self._note(self._marks.pop(checkpoint), kept=False)

    def changes(self, since: int | None) -> SummaryChanges:
        """Return what has changed since a version; None is nothing that is known."""
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
    """Yield the marks of a `SummaryChanges`."""
    return (Mark(*fields) for fields in _MARK.iter_unpack(packed))


def block_digests(root: str, tokens: bytes) -> list[bytes]:
    """Return for each beginning of packed tokens that has whole blocks a hash of it and of `root`."""
    digest = _start(root)
    found = []
    for end in range(_BLOCK_BYTES, len(tokens) + 1, _BLOCK_BYTES):
        digest.update(tokens[end - _BLOCK_BYTES : end])
        found.append(digest.digest())
    return found


def path_digest(blocks: bytes, tail: bytes) -> bytes:
    """Return the hash of a path from that of its whole blocks and the packed tokens after them."""
    return hashlib.blake2b(blocks + tail, digest_size=_DIGEST_BYTES).digest()


def _pack_mark(root: str, tokens: bytes) -> bytes:
    whole = len(tokens) - len(tokens) % _BLOCK_BYTES
    digest = _start(root)
    digest.update(tokens[:whole])
    blocks = digest.digest()
    return _MARK.pack(blocks, path_digest(blocks, tokens[whole:]), len(tokens) // TOKEN_BYTES)


def _start(root: str) -> hashlib.blake2b:
    return hashlib.blake2b(root.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES)
