"""Tokens a second through the scheduler, through the engine and through HTTP, each with an `InstantRunner`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aiohttp import web

from rnn_engine.engine import Engine
from rnn_engine.requests import GenerateRequest, SamplingParams, TextDelta
from rnn_engine.scheduler import Scheduler
from server.app import ServerSettings, make_app
from tools.bench.commits import find, random_model
from tools.bench.host import clients
from tools.bench.host.instant_runner import InstantRunner

WARM_UP = 0.5  # seconds

SAMPLERS: Mapping[str, Mapping[str, float]] = {
    "nucleus": {"temperature": 1.0, "top_p": 0.5, "top_k": 128},
    "penalties": {
        "temperature": 1.0,
        "top_p": 0.5,
        "top_k": 128,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
    },
}
"""The fields of `SamplingParams` and of a request's body."""


@dataclass(frozen=True, slots=True)
class Load:
    """So many requests of so many tokens at any time, for so long."""

    slots: int
    sampler: str
    tokens: int
    seconds: float


class WordTokenizer:
    """Stands for any tokenizer: each token is one short word, with the one `clients.MARK` in it."""

    name = "words"

    def __init__(self, size: int) -> None:
        self.size = size
        self._words = [b" " + clients.MARK + b"%x" % token for token in range(size)]

    def encode(self, text: str, /) -> list[int]:
        return [1 + len(word) for word in text.split()]

    def decode_bytes(self, token: int, /) -> bytes:
        return self._words[token]


def run_scheduler(load: Load) -> float:
    """Steps in a loop on this thread; every free slot is filled before the next step."""
    runner, tokenizer = _make_runner(load), WordTokenizer(65536)
    scheduler = Scheduler(runner, tokenizer.decode_bytes)
    request = _make_request(load)
    submitted, tokens, begun = 0, 0, 0.0
    while begun == 0.0 or time.perf_counter() < begun + load.seconds:
        if begun == 0.0 and tokens >= load.slots * load.tokens:
            tokens, begun = 0, time.perf_counter()  # warm
        while scheduler.num_live + scheduler.num_waiting < load.slots:
            scheduler.submit(submitted, request)
            submitted += 1
        for delivery in scheduler.step():
            if isinstance(delivery.outcome, TextDelta):
                tokens += len(delivery.outcome.tokens)
    return tokens / (time.perf_counter() - begun)


def run_engine(load: Load) -> float:
    """One event loop consumes all requests."""
    return asyncio.run(_run_engine(load))


def run_http(load: Load) -> float:
    """Streamed completions, served by this process and consumed by another one."""
    return asyncio.run(_run_http(load))


MODES: Mapping[str, Callable[[Load], float]] = {"scheduler": run_scheduler, "engine": run_engine, "http": run_http}


async def _run_engine(load: Load) -> float:
    counted = 0
    request = _make_request(load)

    async def consume(engine: Engine) -> None:
        nonlocal counted
        while True:
            async for event in engine.generate(request):
                if isinstance(event, TextDelta):
                    counted += len(event.tokens)

    async with _make_engine(load) as engine:
        tasks = [asyncio.create_task(consume(engine)) for _ in range(load.slots)]
        await asyncio.sleep(WARM_UP)
        before, begun = counted, time.perf_counter()
        await asyncio.sleep(load.seconds)
        rate = (counted - before) / (time.perf_counter() - begun)
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(ended, asyncio.CancelledError):
                raise RuntimeError(f"a client ended early: {ended!r}")
    return rate


async def _run_http(load: Load) -> float:
    body = {"prompt": [1], "max_tokens": load.tokens, "stream": True, **SAMPLERS[load.sampler]}
    runner = web.AppRunner(
        make_app(_make_engine(load), ServerSettings(port=0)), access_log=None, handler_cancellation=True
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2 * load.slots)
        await site.start()
        port: int = runner.addresses[0][1]
        return await _run_clients(["--port", str(port), "--clients", str(load.slots)], load.seconds, body)
    finally:
        await runner.cleanup()


async def _run_clients(arguments: Sequence[str], seconds: float, body: Mapping[str, object]) -> float:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        clients.__file__,
        *arguments,
        *("--seconds", str(seconds), "--warm-up", str(WARM_UP), "--body", json.dumps(body)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError("the clients failed")
    return float(output)


def _make_runner(load: Load) -> InstantRunner:
    return InstantRunner(random_model("0.1B", 1).shape, load.slots)


def _make_engine(load: Load) -> Engine:
    assemble = find("assemble", "rnn_engine.loading.parts", "rnn_engine.loading")
    runner = _make_runner(load)
    parts = assemble(runner, WordTokenizer(runner.shape.vocab_size), model="instant", device="none", weights="f16")
    return Engine(parts, max_queued=load.slots)


def _make_request(load: Load) -> GenerateRequest:
    sampling = SamplingParams(**SAMPLERS[load.sampler])  # type: ignore[arg-type]
    return GenerateRequest([1], max_tokens=load.tokens, stop_tokens=(), sampling=sampling)
