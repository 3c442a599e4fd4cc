"""Exact search by vectors: those of the collections that were searched last are in memory, and follow the changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from sqlite3 import Connection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.database import Database
from rnn_engine.types import F32

_CAPACITY: Final = 1 << 29  # bytes of the vectors that stay in memory between searches, of all collections together
_BLOCK: Final = 2048  # vectors that are read, compared and copied at a time


@dataclass(frozen=True, slots=True)
class _Block:
    """The vectors of some documents. A row of the table is never used again, so a block can't be out of date."""

    rows: NDArray[np.int64]  # [n] in the table, ascending
    matrix: F32  # [n, D] of length 1

    def only(self, rows: NDArray[np.int64]) -> _Block:
        """Return the block without the vectors that are not of `rows`, which ascend."""
        kept = rows[np.minimum(np.searchsorted(rows, self.rows), len(rows) - 1)] == self.rows
        return self if kept.all() else _Block(self.rows[kept], self.matrix[kept])


@dataclass(slots=True)
class _Held:
    """The vectors of one collection."""

    changes: int = -1  # of the collection, up to which its changes are in the blocks
    blocks: Sequence[_Block] = ()  # ascending; each is replaced, and never changed
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while the blocks are brought up to date

    @property
    def num_bytes(self) -> int:
        return sum(block.matrix.nbytes for block in self.blocks)


class Matrices:
    """The vectors of the collections that were searched last, within a bound on their bytes. Thread-safe.

    A search waits for another one only while both need the same new vectors.
    """

    def __init__(self, database: Database, capacity: int = _CAPACITY) -> None:
        self._database = database
        self._capacity = capacity
        self._held: OrderedDict[int, _Held] = OrderedDict()  # by number, the one unused for longest first
        self._evictions = 0
        self._lock = threading.Lock()

    @property
    def usage(self) -> tuple[int, int, int]:
        """The number of collections with vectors in memory, their bytes, and how many gave way to others."""
        with self._lock:
            return len(self._held), sum(held.num_bytes for held in self._held.values()), self._evictions

    def nearest(self, collection: int, changes: int, vector: F32, count: int) -> list[tuple[int, float]]:
        """Return the rows of the `count` nearest vectors, with cosines, up to `changes`. Blocks. Raises ValueError."""
        blocks = self._up_to_date(collection, changes, len(vector))
        if not blocks:
            return []
        rows = np.concatenate([block.rows for block in blocks])
        cosines = np.concatenate([block.matrix @ vector for block in blocks])
        if len(rows) > count:
            near = np.flatnonzero(cosines >= np.partition(cosines, -count)[-count])  # with all that are equal
            rows, cosines = rows[near], cosines[near]
        best = np.argsort(-cosines, kind="stable")[:count]  # of equal ones, the document that was added first
        return [(int(rows[index]), float(np.clip(cosines[index], -1.0, 1.0))) for index in best]

    def forget(self, collection: int) -> None:
        with self._lock:
            self._held.pop(collection, None)

    def _up_to_date(self, collection: int, changes: int, dimensions: int) -> Sequence[_Block]:
        """Return the vectors of a collection. Drop those of others if the bound is exceeded."""
        with self._lock:
            held = self._held.setdefault(collection, _Held())
            self._held.move_to_end(collection)
        with held.lock:
            if held.changes < changes:
                held.blocks = _merged(self._renewed(held.blocks, collection, dimensions))
                held.changes = changes
            blocks = held.blocks
        with self._lock:
            while len(self._held) > 1 and sum(each.num_bytes for each in self._held.values()) > self._capacity:
                self._held.popitem(last=False)
                self._evictions += 1
        return blocks

    def _renewed(self, blocks: Sequence[_Block], collection: int, dimensions: int) -> Iterator[_Block]:
        """Yield the blocks without vectors that were removed, then those that were added."""
        last = int(blocks[-1].rows[-1]) if blocks else 0
        if blocks:
            there = self._database.read_now(partial(_rows, collection, last, sum(len(each.rows) for each in blocks)))
            kept = blocks if there is None else [each.only(there) for each in blocks if len(there)]
            yield from (each for each in kept if len(each.rows))
        while added := self._database.read_now(partial(_vectors_after, collection, last)):
            rows, vectors = zip(*added, strict=True)
            if any(not isinstance(each, bytes) or len(each) != 4 * dimensions for each in vectors):
                raise ValueError(f"a vector has not the bytes of {dimensions} numbers")
            matrix = np.frombuffer(b"".join(vectors), "<f4").reshape(-1, dimensions)
            if not np.isfinite(matrix).all():
                raise ValueError("a vector has a number that is not finite")
            yield _Block(np.array(rows), matrix)
            last = rows[-1]


def _rows(collection: int, last: int, count: int, connection: Connection) -> NDArray[np.int64] | None:
    """Return the rows of a collection up to the `last`, or None if they are still `count`, so that none was removed."""
    condition, values = "FROM documents WHERE collection = ? AND row <= ?", (collection, last)
    if connection.execute(f"SELECT count(*) {condition}", values).fetchone() == (count,):
        return None
    return np.fromiter(
        chain.from_iterable(connection.execute(f"SELECT row {condition} ORDER BY row", values)), np.int64
    )


def _vectors_after(collection: int, last: int, connection: Connection) -> list[tuple[int, bytes]]:
    query = "SELECT row, vector FROM documents WHERE collection = ? AND row > ? ORDER BY row LIMIT ?"
    return connection.execute(query, (collection, last, _BLOCK)).fetchall()


def _merged(blocks: Iterable[_Block]) -> list[_Block]:
    """Join neighbouring blocks that are small, so that there are few."""
    merged = list[_Block]()
    for block in blocks:
        if merged and len(merged[-1].rows) + len(block.rows) <= _BLOCK:
            last = merged.pop()
            block = _Block(np.concatenate([last.rows, block.rows]), np.concatenate([last.matrix, block.matrix]))
        merged.append(block)
    return merged
