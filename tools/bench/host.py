"""`python -m tools.bench.host`: measure the host's time per token, as tokens per second without a model.

The scheduler, the engine and HTTP streaming run over a runner that answers at once. Seconds of the processor are those
of all threads of a process. On a machine that also does other work they are a better measure than seconds of the clock.
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
from rnn_engine.types import NOTHING_DRAWN, Batch, Drawn, Readout, TokenRun
from tests.support.models import tiny_shape
from tools.bench.modelled import MARK, ModelledRunner, WordTokenizer
from tools.bench.turns import Figures, json_option, print_figures
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
}
"""The fields of a body, and of `SamplingParams`."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a measurement: `slots` parallel requests of `tokens` tokens each, repeated for `seconds`."""

    slots: int
    sampler: str
    tokens: int
    seconds: float

    @property
    def request(self) -> GenerateRequest:
        sampling = SamplingParams(**SAMPLERS[self.sampler])  # type: ignore[arg-type]
        return GenerateRequest([1], max_tokens=self.tokens, stop_tokens=(), sampling=sampling)


@click.command()
@click.option("--modes", default="scheduler,engine,http", show_default=True)
@click.option("--samplers", default="nucleus,penalties", show_default=True)
@click.option("--slots", default="8,128", show_default=True)
@click.option("--tokens", default=128, show_default=True, help="Tokens of each request.")
@click.option("--seconds", default=3.0, show_default=True, help="Seconds for which each figure is measured.")
@json_option
def main(modes: str, samplers: str, slots: str, tokens: int, seconds: float, as_json: bool) -> None:
    """Measure scheduler, engine and HTTP streaming, with a runner that answers at once."""
    freeze_modules()  # as a server does, so that tokens do not pay for imports
    figures: dict[str, float] = {}
    for mode, sampler, count in product(*(text.split(",") for text in (modes, samplers, slots))):
        found = MODES[mode](Load(int(count), sampler, tokens, seconds))
        figures |= {f"{mode}, {sampler}, {count} slots, {figure}": value for figure, value in found.items()}
    print_figures(figures, as_json)


def measure_scheduler(load: Load) -> Figures:
    """Run steps of the scheduler in a loop on this thread, with a request in every slot."""
    scheduler = Scheduler(InstantRunner(load.slots), WordTokenizer(HOST_SHAPE.vocab_size).decode_bytes)
    submitted, tokens, begun, cpu_begun = 0, 0, time.perf_counter(), time.process_time()
    warm_up = True
    while (seconds := time.perf_counter() - begun) < load.seconds or warm_up:
        if warm_up and seconds > WARM_UP:
            warm_up, tokens, begun, cpu_begun = False, 0, time.perf_counter(), time.process_time()
        while scheduler.num_live + scheduler.num_waiting < load.slots:
            scheduler.submit(submitted, load.request)
            submitted += 1
        for delivery in scheduler.step():
            if isinstance(delivery.outcome, TextDelta):
                tokens += len(delivery.outcome.tokens)
    return {"tok/s": tokens / seconds, "tok/CPU s": tokens / (time.process_time() - cpu_begun)}


def measure_engine(load: Load) -> Figures:
    """Measure an engine whose requests are all consumed on one event loop."""

    async def measure() -> Figures:
        async with make_instant_engine(load.slots) as engine:

            async def answer() -> AsyncIterator[int]:
                async for event in engine.generate(load.request):
                    if isinstance(event, TextDelta):
                        yield len(event.tokens)

            return await _repeat(answer, load, time.process_time)

    return asyncio.run(measure())


def make_instant_engine(slots: int) -> Engine:
    tokenizer = WordTokenizer(HOST_SHAPE.vocab_size)
    parts = assemble(InstantRunner(slots), tokenizer, model="instant", device="none", weights="f16")
    return Engine(parts, max_queued=slots)


def measure_http(load: Load) -> Figures:
    """Measure HTTP streaming of a server in another process, by the seconds of the processor of that process."""
    body = {"prompt": [1], "max_tokens": load.tokens, "stream": True, **SAMPLERS[load.sampler]}

    async def measure(server: ServerProcess) -> Figures:
        async with patient_session() as session:

            async def answer() -> AsyncIterator[int]:
                async with session.post(server.url + TEXT, json=body, raise_for_status=True) as response:
                    async for data in response.content.iter_any():
                        yield data.count(MARK)

            return await _repeat(answer, load, server.cpu_seconds)

    with ServerProcess(("--instant", "--slots", str(load.slots)), command=("tools.bench.serve",)) as server:
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

    def __init__(self, num_slots: int) -> None:
        super().__init__(HOST_SHAPE, num_slots)
        self.num_penalty_slots = num_slots
        size = (_NUM_PREPARED + num_slots, self.max_draws)
        self._tokens = np.random.default_rng(0).integers(1, HOST_SHAPE.vocab_size, size).tolist()
        self._first = 0

    def read_out(self, batch: Batch) -> Readout:
        self._first = (self._first + 1) % _NUM_PREPARED
        drawn = [self._draw(run, self._tokens[row]) for row, run in enumerate(batch, self._first)]
        return replace(super().read_out(batch), drawn=drawn if any(run.draw for run in batch) else ())

    def _draw(self, run: TokenRun, tokens: Sequence[int]) -> Drawn:
        return NOTHING_DRAWN if run.draw is None else Drawn(tokens[: run.draw.count], is_settled=True, goes_on=True)


if __name__ == "__main__":
    main()
