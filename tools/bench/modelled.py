"""An engine whose steps take a modelled time and compute nothing. The work of the host around the steps is real.

It shows what scheduler, cache, server and fleet cost and save, with any number of slots, on any machine.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
from aiohttp import web

from rnn_engine.engine import Engine
from rnn_engine.interface import EngineLike
from rnn_engine.loading.parts import assemble
from rnn_engine.tokenizer import Tokenizer
from rnn_engine.types import Batch, ModelShape, Readout
from server.core.app import ServerSettings, make_app
from states.cache.config import CacheConfig
from states.cache.upkeep import make_cache
from tests.support.models import tiny_shape
from tools.bench.runners import Clock, TimedRunner, WordTokenizer

MODEL = "modelled"
VOCAB = 256
ANSWER_TOKEN = 1
"""The token of which every answer consists."""

SHAPE = tiny_shape(layers=1, width=8, head_size=4, ffn=8, vocab=VOCAB)
_COPY_BYTES = SHAPE.state_bytes + 4 * VOCAB
_INDEX_BYTES = 1 << 24
_QUEUE = 1000
_UNLIKELY = -100.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """The modelled properties of a machine: its slots, the duration of its steps, and its memory for cached states."""

    slots: int = 16
    step: float = 0.008  # seconds of a step whatever it runs
    token: float = 0.0001  # seconds that each of its tokens adds
    cached_states: int = 64  # that its memory keeps


def make_engine(hardware: Hardware, tokenizer: Tokenizer | None = None) -> Engine:
    """Return an engine on one modelled machine. Its default tokenizer is a `WordTokenizer`.

    Needs a running event loop.
    """
    tokenizer = tokenizer or WordTokenizer(SHAPE.vocab_size)
    runner = ModelledRunner(SHAPE, hardware)
    capacity = hardware.cached_states * _COPY_BYTES
    config = CacheConfig(host_capacity=capacity, device_capacity=0, index_capacity=_INDEX_BYTES)
    cache = make_cache(SHAPE, MODEL, runner, config)
    parts = assemble(runner, tokenizer, model=MODEL, device="none", weights="f32", cache=cache)
    return Engine(parts, max_queued=_QUEUE)


class ModelledRunner(TimedRunner):
    """A runner whose steps take a modelled time, and whose sequences generate the same token without end."""

    def __init__(self, shape: ModelShape, hardware: Hardware, clock: Clock | None = None) -> None:
        super().__init__(shape, hardware.slots, hardware.step, hardware.token, clock=clock)
        self._row = np.full(shape.vocab_size, _UNLIKELY, np.float32)
        self._row[ANSWER_TOKEN] = 0.0

    def read_out(self, batch: Batch) -> Readout:
        rows = sum(run.rows for run in batch)
        zeros = np.zeros(rows, np.float32)
        return Readout(
            ids=np.full((rows, 1), ANSWER_TOKEN, np.int32),
            logits=zeros[:, None],
            logsumexp=zeros,
            allowed_logsumexp=zeros,
            target_logits=self._targets[:rows],
            sound=self._sound[: len(batch)],
            full_row=lambda _: self._row,
        )


@asynccontextmanager
async def served(engine: EngineLike, clients: int, port: int = 0) -> AsyncIterator[int]:
    """Serve an engine over HTTP on this machine until the block ends, for up to `clients` clients at a time.

    Yields the port; `port` 0 chooses a free one. The engine is closed with the server.
    """
    runner = web.AppRunner(make_app(engine, ServerSettings(port=0)), access_log=None, handler_cancellation=True)
    await runner.setup()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # the clients break off in the middle
    try:
        site = web.TCPSite(runner, "127.0.0.1", port, backlog=2 * clients)
        await site.start()
        bound: int = runner.addresses[0][1]
        yield bound
    finally:
        await runner.cleanup()
