"""Matrices of weights, on the host or still in a file, which are read by rows on all cores."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from rnn_engine.quantised.blocks import Blocks

PIECE_WEIGHTS: Final = 1 << 20
"""How many weights are read and converted at once, so that they stay in a core's cache."""

_NUM_THREADS: Final = os.cpu_count() or 1

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of a matrix [R, C] in an open file. `read` reads them; to slice them reads nothing."""

    shape: tuple[int, ...]  # [R, C]
    dtype: np.dtype[Any]  # of the numbers
    fetch: Callable[[slice], NDArray[Any] | Blocks]  # reads some rows of the file's matrix
    first: int = 0  # row of the file's matrix

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> StoredRows:
        start, stop, _ = rows.indices(len(self))
        return replace(self, shape=(max(0, stop - start), self.shape[1]), first=self.first + start)

    def read(self) -> NDArray[Any] | Blocks:
        """Return a copy of the rows, in blocks if the file stores a known block format. May be called on any thread."""
        return self.fetch(slice(self.first, self.first + len(self)))


Matrix: TypeAlias = NDArray[Any] | Blocks | StoredRows
"""A matrix [R, C] of weights."""


def read_rows(matrix: Matrix) -> NDArray[Any] | Blocks:
    """Return a matrix, or rows of it, after reading what is still in a file."""
    return matrix.read() if isinstance(matrix, StoredRows) else matrix


def interleave_rows(first: Matrix, second: Matrix) -> StoredRows:
    """Return the rows of two matrices of one shape in turns, read when they are needed, an even number at once."""

    def fetch(rows: slice) -> NDArray[Any] | Blocks:
        half = slice(rows.start // 2, rows.stop // 2)
        one, other = read_rows(first[half]), read_rows(second[half])
        if isinstance(one, Blocks) and isinstance(other, Blocks) and one.format == other.format:
            return replace(one, codes=_in_turns(one.codes, other.codes), figures=_in_turns(one.figures, other.figures))
        return _in_turns(*(each.numbers() if isinstance(each, Blocks) else each for each in (one, other)))

    rows, columns = first.shape
    return StoredRows((2 * rows, columns), np.dtype(np.float32) if isinstance(first, Blocks) else first.dtype, fetch)


def _in_turns(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    return np.stack([first, second], axis=1).reshape(-1, *first.shape[1:])


def map_rows(function: Callable[[NDArray[Any] | Blocks], R], matrix: Matrix, step: int) -> Iterator[R]:
    """Apply `function` to pieces of `step` rows, a few ahead on a thread for each core; yield results in order."""
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        ahead: deque[Future[R]] = deque()
        try:
            for start in range(0, matrix.shape[0], step):
                rows = matrix[start : start + step]
                ahead.append(pool.submit(lambda rows: function(read_rows(rows)), rows))
                if len(ahead) > _NUM_THREADS:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()
