"""The number of threads on which numpy multiplies matrices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from threadpoolctl import ThreadpoolController

from rnn_engine.types import ModelShape

SMALL_WIDTH: Final = 512  # up to which a model's matrices gain little from threads


@contextmanager
def matmul_threads(shape: ModelShape) -> Iterator[None]:
    """Return a context manager in which the matmuls of small models run on one thread, in the whole process.

    The threads of OpenBLAS spin while they wait for one another. If other processes use the cores, a small matmul on
    two threads takes ten to a hundred times as long as on one. Models wider than 512 keep numpy's threads.
    """
    if shape.width > SMALL_WIDTH:
        yield
        return
    one_thread = _one_thread()
    one_thread.enter()
    try:
        yield
    finally:
        one_thread.leave()


class _OneThread:
    """Bounds the threads of BLAS to one from the first `enter` to the last `leave`. Thread-safe."""

    def __init__(self) -> None:
        self._controller = ThreadpoolController()
        self._lock = threading.Lock()
        self._count = 0

    def enter(self) -> None:
        with self._lock:
            if self._count == 0:
                self._limiter = self._controller.limit(limits=1, user_api="blas")
            self._count += 1

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                self._limiter.restore_original_limits()


@cache
def _one_thread() -> _OneThread:
    return _OneThread()
