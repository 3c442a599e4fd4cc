"""Caches of several servers over one shared store, on devices without a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.shared.config import StoreConfig, StoreCounters, StoreUrl, open_store
from tests.support.toy_states import ROOT, ToyDevice, keep, look_up, same, toy_shape, toy_state

_SECONDS = 30


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SharingServer:
    """One server's cache, over the shared store."""

    def __init__(
        self,
        url: str,
        *,
        model: str = "model",
        vocab: int = 24,
        host: int = 0,
        index_capacity: int | None = None,
        timeout: float = 30.0,
        ttl: int = 3600,
    ) -> None:
        self.clock = Clock()
        self.shape = toy_shape(vocab)
        self.device = ToyDevice(self.shape)
        store = StoreConfig(StoreUrl.parse(url), timeout=timeout, ttl=ttl, write_after=0.0, min_tokens=1)
        self.store = open_store(store, self.clock)
        config = CacheConfig(host_capacity=host, store=store, index_capacity=index_capacity)
        self.cache = make_cache(self.shape, model, self.device, config, clock=self.clock, store=self.store)

    def keep(self, tokens: Sequence[int], *, root: str = ROOT, logits: bool = True) -> bool:
        """Run tokens and keep the state; return when the store has it or has refused it."""
        kept = keep(self.cache, self.device, tokens, root=root, logits=logits)
        self.write()
        return kept

    def write(self) -> None:
        """Return when no state is on its way to the store that the store would take now."""
        tier, until = self.cache.tiers[-1], time.monotonic() + _SECONDS
        self.cache.write_behind()
        while (tier.is_busy or (self.cache.has_unwritten and tier.is_ready)) and time.monotonic() < until:
            time.sleep(0.001)
            self.cache.write_behind()

    def ask(self, tokens: Sequence[int], *, root: str = ROOT) -> None:
        """Ask the store and take in its answer, as a request does."""
        ended = threading.Event()
        inquiry = self.cache.inquire(root, tokens, on_done=ended.set)
        if inquiry is not None:
            assert ended.wait(_SECONDS)
            self.cache.learn(inquiry)

    def found(self, tokens: Sequence[int], *, root: str = ROOT) -> int:
        """Return the number of tokens that need not be run, after checking that the state found is right."""
        self.ask(tokens, root=root)
        match = look_up(self.cache, list(tokens), root=root)
        if match.saved > 0:
            self.cache.restore(match, 1)
            assert same(self.device.read_state(1), toy_state(self.shape, tokens[: match.saved]))
        return match.saved

    def counters(self) -> StoreCounters:
        """Return the counters of the store."""
        counters = self.cache.stats().store
        assert counters is not None
        return counters


@contextmanager
def serving(url: str, **settings: object) -> Iterator[SharingServer]:
    """Yield a server, which is closed at the end."""
    server = SharingServer(url, **settings)  # type: ignore[arg-type]
    try:
        yield server
    finally:
        server.cache.close()
        server.store.close()
