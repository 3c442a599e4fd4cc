"""`python -m tools.bench.host`: measure the host's time per token, as tokens per second without a model.

The scheduler, the engine and HTTP streaming run over a runner that answers at once or after a modelled time. Seconds of
the processor are those of all threads of a process. On a machine that also does other work they are a better measure
than seconds of the clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import click
import numpy as np

from rnn_engine.engine import Engine
from rnn_engine.loading.parts import assemble, freeze_modules
from rnn_engine.requests import GenerateRequest, SamplingParams, TextDelta
from rnn_engine.scheduler import Scheduler
from rnn_engine.types import NOTHING_DRAWN, Batch, Drawn, Readout, TokenLogprobs, TokenRun
from tests.support.models import tiny_shape
from tools.bench.modelled import MARK, Clock, DeviceClock, ModelledRunner, RealClock, WordTokenizer
from tools.bench.turns import Figures, compared
from tools.live_server.asking import patient_session
from tools.live_server.caller import TEXT
from tools.live_server.process import ServerProcess

WARM_UP = 0.5  # seconds
HOST_SHAPE = tiny_shape(layers=1, width=768, head_size=64, vocab=65536)
_NUM_PREPARED = 256  # rows of tokens that an `InstantRunner` draws

_NUCLEUS = {"temperature": 1.0, "top_p": 0.5, "top_k": 128}
SAMPLERS: Mapping[str, Mapping[str, float]] = {
    "nucleus": _NUCLEUS,
    "penalties": {**_NUCLEUS, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "repetition": {**_NUCLEUS, "repeat_penalty": 1.1},
    "logprobs": {**_NUCLEUS, "logprobs": 5},
}
"""The fields of a body: `logprobs`, and those of `SamplingParams`. HTTP counts alternatives of `logprobs` as tokens."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a measurement: `slots` parallel requests of `tokens` tokens each, repeated for `seconds`."""

    slots: int
    sampler: str
    tokens: int
    seconds: float
    step_seconds: float = 0.0


@click.command()
@click.option("--modes", default="scheduler,engine,http", show_default=True)
@click.option("--samplers", default="nucleus,penalties", show_default=True, help=f"Of {', '.join(SAMPLERS)}.")
@click.option("--slots", default="8,128", show_default=True)
@click.option("--tokens", default=128, show_default=True, help="Tokens of each request.")
@click.option("--seconds", default=3.0, show_default=True, help="Seconds for which each figure is measured.")
@click.option("--steps", default="0", show_default=True, help="Milliseconds that a step of the runner takes.")
@compared("tools.bench.host")
def main(modes: str, samplers: str, slots: str, tokens: int, seconds: float, steps: str) -> Figures:
    """Measure scheduler, engine and HTTP streaming, with a runner that answers at once or after a modelled time.

    If steps take time, the table also shows the share of that time in which the device runs tokens: tokens a second
    times seconds a step, divided by slots.
    """
    freeze_modules()  # as a server does, so that tokens do not pay for imports
    figures: dict[str, float] = {}
    for step, mode, sampler, slot_count in product(*(text.split(",") for text in (steps, modes, samplers, slots))):
        load = Load(int(slot_count), sampler, tokens, seconds, float(step) / 1e3)
        found = MODES[mode](load)
        name = f"{mode}, {sampler}, {slot_count} slots"
        if load.step_seconds:
            name += f", {step} ms a step"
            figures[f"{name}, share of the device's time"] = found["tok/s"] * load.step_seconds / load.slots
        figures |= {f"{name}, {figure}": value for figure, value in found.items()}
    return figures


def measure_scheduler(load: Load) -> Figures:
    """Measure the scheduler alone on this thread. If steps take time, a `DeviceClock` counts it."""
    clock = DeviceClock() if load.step_seconds else RealClock()
    runner = InstantRunner(load.slots, load.step_seconds, clock)
    scheduler = Scheduler(runner, WordTokenizer(HOST_SHAPE.vocab_size).decode_bytes, clock=clock.now)
    return run_scheduler(scheduler, make_request(load), load, clock)


def run_scheduler(scheduler: Scheduler, request: GenerateRequest, load: Load, clock: Clock) -> Figures:
    """Run steps in a loop, and repeat `request` in every free slot. Return the rates of tokens after a warm-up.

    With a modelled device, answers differ in length, so that they end one by one.
    """
    submitted, tokens, begun, cpu_begun = 0, 0, clock.now(), time.process_time()
    warm_up = True
    while (seconds := clock.now() - begun) < load.seconds or warm_up:
        if warm_up and seconds > WARM_UP:
            warm_up, tokens, begun, cpu_begun = False, 0, clock.now(), time.process_time()
        while scheduler.num_live + scheduler.num_waiting < load.slots:
            length = load.tokens // 2 + 37 * submitted % load.tokens if load.step_seconds else load.tokens
            scheduler.submit(submitted, replace(request, max_tokens=length))
            submitted += 1
        for delivery in scheduler.step():
            if isinstance(delivery.outcome, TextDelta):
                tokens += len(delivery.outcome.tokens)
    return {"tok/s": tokens / seconds, "tok/CPU s": tokens / (time.process_time() - cpu_begun)}


def make_request(load: Load) -> GenerateRequest:
    fields = dict(SAMPLERS[load.sampler])
    logprobs = int(fields.pop("logprobs", 0)) or None
    sampling = SamplingParams(**fields)  # type: ignore[arg-type]
    return GenerateRequest([1], max_tokens=load.tokens, stop_tokens=(), sampling=sampling, logprobs=logprobs)


def measure_engine(load: Load) -> Figures:
    """Measure an engine whose requests are all consumed on one event loop."""

    async def measure() -> Figures:
        async with make_instant_engine(load.slots, load.step_seconds) as engine:
            return await run_engine(engine, make_request(load), load)

    return asyncio.run(measure())


def make_instant_engine(slots: int, step_seconds: float) -> Engine:
    runner = InstantRunner(slots, step_seconds)
    tokenizer = WordTokenizer(HOST_SHAPE.vocab_size)
    return Engine(assemble(runner, tokenizer, model="instant", device="none", weights="f16"), max_queued=slots)


async def run_engine(engine: Engine, request: GenerateRequest, load: Load) -> Figures:
    """Repeat `request` in every slot of an engine of this process. Return the rates of tokens after a warm-up."""

    async def answer() -> AsyncIterator[int]:
        async for event in engine.generate(request):
            if isinstance(event, TextDelta):
                yield len(event.tokens)

    return await _repeat(answer, load, time.process_time)


def measure_http(load: Load) -> Figures:
    """Measure HTTP streaming of a server in another process, by the seconds of the processor of that process."""
    options = ["--instant", "--slots", str(load.slots), "--step", str(load.step_seconds)]
    body = {"prompt": [1], "max_tokens": load.tokens, "stream": True, **SAMPLERS[load.sampler]}

    async def measure(server: ServerProcess) -> Figures:
        async with patient_session() as session:

            async def answer() -> AsyncIterator[int]:
                async with session.post(server.url + TEXT, json=body, raise_for_status=True) as response:
                    async for data in response.content.iter_any():
                        yield data.count(MARK)

            return await _repeat(answer, load, server.cpu_seconds)

    with ServerProcess(options, command=("tools.bench.serve",)) as server:
        return asyncio.run(measure(server))


MODES = {"scheduler": measure_scheduler, "engine": measure_engine, "http": measure_http}


async def _repeat(answer: Callable[[], AsyncIterator[int]], load: Load, cpu_seconds: Callable[[], float]) -> Figures:
    """Repeat a request in each slot of `load`. Return the rates of its tokens after a warm-up.

    `answer` yields the numbers of tokens of the parts of an answer. `cpu_seconds` are those of the process that
    generates them.
    """
    counted = 0

    async def ask() -> None:
        nonlocal counted
        while True:
            async for tokens in answer():
                counted += tokens

    tasks = [asyncio.create_task(ask()) for _ in range(load.slots)]
    while not counted and not any(task.done() for task in tasks):  # grammars are compiled first
        await asyncio.sleep(WARM_UP)
    before, begun, cpu_begun = counted, time.perf_counter(), cpu_seconds()
    await asyncio.sleep(load.seconds)
    tokens, seconds, cpu = counted - before, time.perf_counter() - begun, cpu_seconds() - cpu_begun
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(ended, asyncio.CancelledError):
            raise RuntimeError(f"a client ended early: {ended!r}")
    return {"tok/s": tokens / seconds, "tok/CPU s": tokens / cpu}


class InstantRunner(ModelledRunner):
    """A runner of a vocabulary of 65,536 tokens whose device draws random tokens, up to 16 of a sequence in a step.

    So the host never needs the logits.
    """

    max_draws = 16
    max_draw_logprobs = 20

    def __init__(self, num_slots: int, step_seconds: float = 0.0, clock: Clock | None = None) -> None:
        super().__init__(HOST_SHAPE, num_slots, step_seconds, clock=clock)
        self.num_penalty_slots = num_slots
        size = (_NUM_PREPARED + num_slots, self.max_draws)
        self._tokens = np.random.default_rng(0).integers(1, HOST_SHAPE.vocab_size, size).tolist()
        self._likeliest = tuple((token, -1.0) for token in range(self.max_draw_logprobs))
        self._first = 0

    def read_out(self, batch: Batch) -> Readout:
        self._first = (self._first + 1) % _NUM_PREPARED
        drawn = [self._draw(run, self._tokens[row]) for row, run in enumerate(batch, self._first)]
        return replace(super().read_out(batch), drawn=drawn if any(run.draw for run in batch) else ())

    def _draw(self, run: TokenRun, tokens: Sequence[int]) -> Drawn:
        if run.draw is None:
            return NOTHING_DRAWN
        drawn = Drawn(tokens[: run.draw.count], is_settled=True, goes_on=True)
        if run.draw.logprobs is not None:
            drawn.logprobs = [TokenLogprobs(-1.0, self._likeliest[: run.draw.logprobs])] * len(drawn.tokens)
        return drawn


if __name__ == "__main__":
    main()
