"""Measure tokens per second of the scheduler, of the engine, and of HTTP streaming, each with an `InstantRunner`.

Seconds of the processor are those of all threads of this process. On a machine that also does other work they are a
better measure than seconds of the clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from rnn_engine.engine import Engine
from rnn_engine.grammar import Grammar, Vocabulary, json_grammar
from rnn_engine.grammar.compiled import compile_grammar
from rnn_engine.loading.parts import assemble
from rnn_engine.requests import GenerateRequest, SamplingParams, TextDelta
from rnn_engine.scheduler import Scheduler
from rnn_engine.tokenizer import Tokenizer
from rnn_engine.tokenizer.world import WorldTokenizer
from tools.bench.host import clients
from tools.bench.modelled import served
from tools.bench.random_model import SHAPES
from tools.bench.runners import (
    SCHEMA,
    Clock,
    DeviceClock,
    InstantRunner,
    RealClock,
    RecitingRunner,
    TimedRunner,
    WordTokenizer,
)
from tools.live_server.process import run_elsewhere

WARM_UP = 0.5  # seconds

_NUCLEUS = {"temperature": 1.0, "top_p": 0.5, "top_k": 128}
SAMPLERS: Mapping[str, Mapping[str, float]] = {
    "nucleus": _NUCLEUS,
    "penalties": {**_NUCLEUS, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "repetition": {**_NUCLEUS, "repeat_penalty": 1.1},
    "logprobs": {**_NUCLEUS, "logprobs": 5},
}
"""The fields of a request's body: `logprobs`, and those of `SamplingParams`."""


ANSWERS = ("words", "json", "schema", "object")
"""Plain words, or a JSON document: without a grammar, with its schema as the grammar, or as any JSON object."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a measurement: `slots` parallel requests of `tokens` tokens each, repeated for `seconds`."""

    slots: int
    sampler: str
    tokens: int
    seconds: float
    answers: str = "words"
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Rate:
    """A measured speed: tokens per second of real time, and tokens per second of processor time."""

    per_second: float
    per_cpu_second: float


def run_scheduler(load: Load) -> Rate:
    """Measure the scheduler alone: run its steps in a loop on this thread.

    Every free slot is filled before the next step. If steps take time, a `DeviceClock` counts it.
    """
    clock = DeviceClock() if load.step_seconds else RealClock()
    runner, tokenizer = _make_runner(load, clock), _make_tokenizer(load)
    scheduler = Scheduler(runner, tokenizer.decode_bytes, clock=clock.now)
    request = _make_request(load)
    if request.grammar is not None:
        request = replace(request, grammar=None, token_mask=compile_grammar(request.grammar, _vocabulary()).start)
    submitted, tokens, timer = 0, 0, _Timer(clock)
    warm_up = True
    while warm_up or timer.seconds < load.seconds:
        if warm_up and timer.seconds > WARM_UP:
            warm_up, tokens, timer = False, 0, _Timer(clock)
        while scheduler.num_live + scheduler.num_waiting < load.slots:
            scheduler.submit(submitted, replace(request, max_tokens=_length(load, submitted)))
            submitted += 1
        for delivery in scheduler.step():
            if isinstance(delivery.outcome, TextDelta):
                tokens += len(delivery.outcome.tokens)
    return timer.rate(tokens)


def run_engine(load: Load) -> Rate:
    """Measure the engine: run it with requests that are all consumed on one event loop."""
    return asyncio.run(_run_engine(load))


def run_http(load: Load) -> Rate:
    """Measure HTTP streaming: this process serves completions, and another process consumes them."""
    return asyncio.run(_run_http(load))


MODES: Mapping[str, Callable[[Load], Rate]] = {"scheduler": run_scheduler, "engine": run_engine, "http": run_http}


class _Timer:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun = clock.now(), time.process_time()

    @property
    def seconds(self) -> float:
        return self._clock.now() - self._begun[0]

    def rate(self, tokens: int) -> Rate:
        return Rate(tokens / self.seconds, tokens / (time.process_time() - self._begun[1]))


async def _run_engine(load: Load) -> Rate:
    async with _make_engine(load) as engine:
        return await consume(engine, _make_request(load), load)


async def consume(engine: Engine, request: GenerateRequest, load: Load) -> Rate:
    """Repeat `request` on the engine, in one loop per slot of `load`; return the rate of tokens after a warm-up."""
    counted = 0

    async def ask() -> None:
        nonlocal counted
        while True:
            async for event in engine.generate(request):
                if isinstance(event, TextDelta):
                    counted += len(event.tokens)

    tasks = [asyncio.create_task(ask()) for _ in range(load.slots)]
    await asyncio.sleep(WARM_UP)
    before, timer = counted, _Timer(RealClock())
    await asyncio.sleep(load.seconds)
    rate = timer.rate(counted - before)
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(ended, asyncio.CancelledError):
            raise RuntimeError(f"a client ended early: {ended!r}")
    return rate


async def _run_http(load: Load) -> Rate:
    body = {"prompt": [1], "max_tokens": load.tokens, "stream": True, **SAMPLERS[load.sampler]}
    async with served(_make_engine(load), load.slots) as port:
        timer = _Timer(RealClock())
        counted = await count_tokens(port, load.slots, load.seconds, body)
        return Rate(counted.per_second, timer.rate(counted.tokens).per_cpu_second)


async def count_tokens(port: int, num_clients: int, seconds: float, body: Mapping[str, object]) -> clients.Counted:
    """Run HTTP clients in another process that repeat the request `body`; return the tokens that they received."""
    plan = {"port": port, "num_clients": num_clients, "warm_up": WARM_UP, "seconds": seconds, "body": body}
    return clients.Counted(**await run_elsewhere(clients.__name__, plan))


def _make_tokenizer(load: Load) -> Tokenizer:
    return WordTokenizer(65536) if load.answers == "words" else WorldTokenizer()


def _length(load: Load, number: int) -> int:
    """Return the number of tokens to generate for request `number`.

    With a modelled device it varies, so that requests end one by one.
    """
    return load.tokens // 2 + 37 * number % load.tokens if load.step_seconds else load.tokens


def _make_runner(load: Load, clock: Clock | None = None) -> TimedRunner:
    shape = replace(SHAPES["0.1B"], num_layers=1)
    if load.answers == "words":
        return InstantRunner(shape, load.slots, load.step_seconds, clock)
    return RecitingRunner(shape, load.slots, _make_tokenizer(load), load.step_seconds, clock)


def _make_engine(load: Load) -> Engine:
    parts = assemble(_make_runner(load), _make_tokenizer(load), model="instant", device="none", weights="f16")
    return Engine(parts, max_queued=load.slots)


@cache
def _vocabulary() -> Vocabulary:
    return Vocabulary.of(WorldTokenizer(), 65536)


def _make_request(load: Load) -> GenerateRequest:
    fields = dict(SAMPLERS[load.sampler])
    logprobs = fields.pop("logprobs", None)
    sampling = SamplingParams(**fields)  # type: ignore[arg-type]
    if load.answers == "words":
        return GenerateRequest(
            [1],
            max_tokens=load.tokens,
            stop_tokens=(),
            sampling=sampling,
            logprobs=None if logprobs is None else int(logprobs),
        )
    grammars = {"json": None, "schema": json_grammar(SCHEMA), "object": Grammar("json_object")}
    return GenerateRequest([0], max_tokens=load.tokens, sampling=sampling, grammar=grammars[load.answers])
