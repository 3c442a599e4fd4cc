"""Exact search by vectors: those of the collections that were searched last are in memory, and follow the changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
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
_BLOCK: Final = 2048  # vectors that are read at a time


@dataclass(slots=True)
class _Held:
    """The vectors of one collection. The arrays are replaced, and never changed."""

    rows: NDArray[np.int64]  # [n] in the table, ascending; none of them is ever used again
    matrix: F32  # [n, D] of length 1
    changes: int = -1  # of the collection, up to which its changes are in the arrays
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while the arrays are brought up to date


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
            return len(self._held), self._num_bytes(), self._evictions

    def nearest(self, collection: int, changes: int, vector: F32, count: int) -> list[tuple[int, float]]:
        """Return the rows of the `count` nearest vectors, with cosines, up to `changes`. Blocks. Raises ValueError."""
        rows, matrix = self._up_to_date(collection, changes, len(vector))
        cosines = matrix @ vector
        if len(rows) > count:
            near = np.flatnonzero(cosines >= np.partition(cosines, -count)[-count])  # with all that are equal
            rows, cosines = rows[near], cosines[near]
        best = np.argsort(-cosines, kind="stable")[:count]  # of equal ones, the document that was added first
        return [(int(rows[index]), float(np.clip(cosines[index], -1.0, 1.0))) for index in best]

    def forget(self, collection: int) -> None:
        with self._lock:
            self._held.pop(collection, None)

    def _num_bytes(self) -> int:
        return sum(held.matrix.nbytes for held in self._held.values())

    def _up_to_date(self, collection: int, changes: int, dimensions: int) -> tuple[NDArray[np.int64], F32]:
        """Return the rows and vectors of a collection. Drop those of others if the bound is exceeded."""
        with self._lock:
            empty = _Held(np.zeros(0, np.int64), np.zeros((0, dimensions), np.float32))
            held = self._held.setdefault(collection, empty)
            self._held.move_to_end(collection)
        with held.lock:
            if held.changes < changes:
                self._renew(held, collection, dimensions)
                held.changes = changes
            found = held.rows, held.matrix
        with self._lock:
            while len(self._held) > 1 and self._num_bytes() > self._capacity:
                self._held.popitem(last=False)
                self._evictions += 1
        return found

    def _renew(self, held: _Held, collection: int, dimensions: int) -> None:
        """Drop the vectors that were removed, and read those that were added."""
        all_rows, matrices = [held.rows], [held.matrix]
        last = held.rows.max(initial=0).item()
        there = self._database.read_now(partial(_rows, collection, last, len(held.rows)))
        if there is not None:
            kept = np.isin(held.rows, there, assume_unique=True)
            all_rows, matrices = [held.rows[kept]], [held.matrix[kept]]
        while added := self._database.read_now(partial(_vectors_after, collection, last)):
            rows, vectors = zip(*added, strict=True)
            if any(not isinstance(each, bytes) or len(each) != 4 * dimensions for each in vectors):
                raise ValueError(f"a vector has not the bytes of {dimensions} numbers")
            matrix = np.frombuffer(b"".join(vectors), "<f4").reshape(-1, dimensions)
            if not np.isfinite(matrix).all():
                raise ValueError("a vector has a number that is not finite")
            all_rows.append(np.array(rows))
            matrices.append(matrix)
            last = rows[-1]
        held.rows, held.matrix = np.concatenate(all_rows), np.concatenate(matrices)


def _rows(collection: int, last: int, count: int, connection: Connection) -> NDArray[np.int64] | None:
    """Return the rows of a collection up to the `last`, or None if they are still `count`, so that none was removed."""
    condition, values = "FROM documents WHERE collection = ? AND row <= ?", (collection, last)
    if connection.execute(f"SELECT count(*) {condition}", values).fetchone() == (count,):
        return None
    return np.fromiter(chain.from_iterable(connection.execute(f"SELECT row {condition}", values)), np.int64)


def _vectors_after(collection: int, last: int, connection: Connection) -> list[tuple[int, bytes]]:
    query = "SELECT row, vector FROM documents WHERE collection = ? AND row > ? ORDER BY row LIMIT ?"
    return connection.execute(query, (collection, last, _BLOCK)).fetchall()
