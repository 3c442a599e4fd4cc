"""What is done for the cache on the thread that owns it, without anyone waiting for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from states.cache.cache import StateCache
from states.cache.summary import SummaryChanges

logger = logging.getLogger(__name__)

_WRITE_BEHIND_SECONDS = 1.0  # from one look for states that are to be written to the next


class CacheUpkeep:
    """Writes what is old enough to disk, and drops what nobody can reach. For one event loop, but for `forget_root`."""

    def __init__(
        self, cache: StateCache, call: Callable[[Callable[[], None]], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        """`call` has the thread that owns `cache` call its argument."""
        self._cache = cache
        self._call = call
        self._loop = loop
        self._stopped = False
        self._next: asyncio.TimerHandle | None = None
        if cache.any_slow:
            self._write_behind()

    def stop(self) -> None:
        """Write nothing more, since the thread is about to end, which writes the rest."""
        self._stopped = True
        if self._next is not None:
            self._next.cancel()  # and let go of the cache

    def forget_root(self, root: str) -> None:
        """Drop what is kept of sequences that start from the state with this digest. For any thread."""
        self._do(partial(self._cache.drop_state, root), "states that nobody can reach stay in it")

    def changes(self, since: int | None) -> SummaryChanges | None:
        """Return what has changed in the summary of the cache since a version of it; None where there is none yet."""
        if self._cache.summary is None:
            self._do(self._cache.summarise, "nobody is told what it keeps")
            return None
        return self._cache.summary.changes(since)

    def _write_behind(self) -> None:
        """Have states that are old enough written to disk, now and every second from now on."""
        if self._stopped:
            return
        if self._cache.has_unwritten:
            self._do(self._cache.write_behind, "states are in memory alone until the end")
        self._next = self._loop.call_later(_WRITE_BEHIND_SECONDS, self._write_behind)

    def _do(self, action: Callable[[], object], consequence: str) -> None:
        """Have `action` done on the thread; where it fails, that and its `consequence` are logged."""

        def call() -> None:
            try:
                action()
            except Exception:
                logger.exception("the cache of states failed; %s", consequence)

        self._call(call)
