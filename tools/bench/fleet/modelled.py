"""An engine of modelled steps in real time, and what a front of a fleet of them has."""

from __future__ import annotations

import time

from rnn_engine.chat_template import WorldTemplate
from rnn_engine.engine import Engine
from rnn_engine.fleet.remote import Front
from rnn_engine.fleet.settings import ReplicaPlace
from rnn_engine.loading.parts import assemble
from rnn_engine.loading.settings import make_registry
from rnn_engine.tokenizer import Tokenizer
from states.cache.upkeep import make_cache
from states.named.store import LocalStateStore
from tools.bench.host.modes import WordTokenizer
from tools.fleet_simulator.hardware import Hardware, ModelledRunner
from tools.fleet_simulator.machine import SHAPE, cache_config

MODEL = "modelled"
_QUEUE = 1000


def make_engine(hardware: Hardware, tokenizer: Tokenizer | None = None) -> Engine:
    """Return an engine of one machine, of words unless a tokenizer is given. Needs an event loop that runs."""
    tokenizer = tokenizer or WordTokenizer(SHAPE.vocab_size)
    runner = ModelledRunner(SHAPE, hardware, time.perf_counter, _sleep_until)
    cache = make_cache(SHAPE, MODEL, runner, cache_config(hardware))
    parts = assemble(runner, tokenizer, model=MODEL, device="none", weights="f32", cache=cache)
    return Engine(parts, max_queued=_QUEUE)


async def load_replica(hardware: Hardware, _place: ReplicaPlace) -> Engine:
    """Return the engine of a replica, in its process."""
    return make_engine(hardware)


def make_front() -> Front:
    """Return what the server's process has of a fleet of such engines."""
    registry = make_registry(SHAPE, MODEL)
    return Front(WordTokenizer(SHAPE.vocab_size), WorldTemplate(), LocalStateStore(registry), registry.files)


def _sleep_until(moment: float) -> None:
    time.sleep(max(moment - time.perf_counter(), 0.0))
