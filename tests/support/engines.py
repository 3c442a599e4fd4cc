"""Engines over a runner that answers at once, and requests to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from rnn_engine.engine import Engine
from rnn_engine.interface import EngineLike
from rnn_engine.loading.parts import assemble
from rnn_engine.requests import GenerateRequest, SamplingParams
from rnn_engine.types import Runner
from rnn_engine_states.cache.cache import StateCache
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Heard
from tests.support.fake_runner import scripted_logits

TOKENIZER = ByteTokenizer()
GREEDY = SamplingParams(temperature=0.0, seed=0)
HELLO = scripted_logits(TOKENIZER.size, TOKENIZER.encode("Hello"))
ENDLESS = scripted_logits(TOKENIZER.size, [ord("x") + 1] * 1000)
PATIENCE = 30.0  # seconds until a test that waits in vain fails


@asynccontextmanager
async def running(runner: Runner, max_queued: int = 64) -> AsyncGenerator[Engine, None]:
    async with asyncio.timeout(PATIENCE), engine_of(runner, max_queued) as engine:
        yield engine


def engine_of(runner: Runner, max_queued: int = 64, cache: StateCache | None = None) -> Engine:
    parts = assemble(runner, TOKENIZER, model="fake", device="none", weights="f32", cache=cache)
    return Engine(parts, max_queued=max_queued)


def ask(text: str = "Hi", max_tokens: int = 20) -> GenerateRequest:
    return GenerateRequest(TOKENIZER.encode(text), max_tokens=max_tokens, sampling=GREEDY)


async def listen(engine: EngineLike, request: GenerateRequest) -> Heard:
    return Heard([event async for event in engine.generate(request)])


async def reach(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)
