"""Pack matrices for a device and upload them, piece by piece."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from numpy.typing import NDArray

from rnn_engine.forward.packing import PANEL_ROWS
from rnn_engine.forward.weight_formats import WeightFormat, row_blocks
from rnn_engine.gpu import Buffer, Memory
from rnn_engine.quantised import Blocks

_PIECE_BYTES = 16 << 20  # of weights in f32 that are packed at once
_NUM_THREADS = os.cpu_count() or 1

T = TypeVar("T")
R = TypeVar("R")


def create_weight_buffers(memory: Memory, label: str, weights: WeightFormat, num_blocks: int) -> dict[str, Buffer]:
    """Allocate the buffers of a format for `num_blocks` blocks, by the variable's name in the WGSL."""
    return {
        variable: memory.create_buffer(f"{label} {variable}", num_blocks * num_bytes)
        for variable, num_bytes in weights.block_bytes.items()
    }


def upload_rows(
    memory: Memory,
    buffers: Mapping[str, Buffer],
    weights: WeightFormat,
    rows: NDArray[Any] | Blocks,
    first_block: int,
) -> None:
    """Pack `rows` [R, C] and write them to `buffers` from block `first_block` on. Packs on all cores."""
    blocks = row_blocks(weights, rows.shape[1])
    piece = max(1, _PIECE_BYTES // (4 * rows.shape[1]) // PANEL_ROWS) * PANEL_ROWS
    starts = range(0, len(rows), piece)
    pieces = (rows[start : start + piece] for start in starts)
    for start, packed in zip(starts, _map_ahead(weights.pack, pieces), strict=True):
        block = first_block + start * blocks
        for variable, array in packed.items():
            memory.upload(buffers[variable], block * weights.block_bytes[variable], array)


def _map_ahead(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield what `function` returns for each item, in order, while threads work on the next few."""
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        ahead: deque[Future[R]] = deque()
        for item in items:
            ahead.append(pool.submit(function, item))
            if len(ahead) > _NUM_THREADS:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
