"""`python -m tools.bench.traces`: replay traces of prompts, and measure what a cache of bounded size saves and costs.

The scheduler and the cache are the real ones, over a runner that computes nothing. Its steps take modelled time: a
constant for each step, and some for each token. Prompts come one after the other. Every figure is of a whole trace.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

import click

from rnn_engine.requests import GenerateRequest, SamplingParams
from rnn_engine.scheduler import Scheduler
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.cache.upkeep import make_cache
from tests.support.models import tiny_shape
from tools.bench.modelled import DeviceClock, ModelledRunner
from tools.bench.turns import Figures, compared

LINE, SENTENCE = 10, 11  # tokens that end a line and a sentence
_VOCAB = 256
_STEP_SECONDS, _TOKEN_SECONDS = 0.008, 0.0001
_REQUEST = GenerateRequest([], max_tokens=2, stop_tokens=(), sampling=SamplingParams(temperature=0.0))


def make_prompt(tokens: Sequence[int], turns: Sequence[int] = (), marks: Sequence[int] = ()) -> GenerateRequest:
    """Return a request for two tokens after a prompt. `turns` and `marks` are token positions in the prompt."""
    return replace(_REQUEST, prompt=tokens, turn_positions=turns, checkpoint_positions=marks)


class Writer:
    """A source of random texts. It picks a few texts often and most texts seldom, as people do."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def text(self, least: int, most: int) -> list[int]:
        """Return a random text of `least` to `most` tokens, divided into sentences and lines."""
        tokens = self.random.choices(range(20, _VOCAB), k=self.random.randint(least, most))
        for number, place in enumerate(itertools.accumulate(itertools.repeat(self.random.randint(8, 20), len(tokens)))):
            if place >= len(tokens):
                break
            tokens[place] = SENTENCE if number % 4 else LINE
        return tokens

    def popular(self, count: int) -> int:
        """Return a random number below `count`. The number n has a probability in proportion to 1 / (n + 1)."""
        return self.random.choices(range(count), [1 / (1 + n) for n in range(count)])[0]


def chats(write: Writer) -> Iterator[GenerateRequest]:
    """Yield the prompts of chats of six turns each, 16 chats at a time, each after one of 50 system texts."""
    systems = [write.text(300, 1200) for _ in range(50)]
    open_chats: list[tuple[list[int], list[int]]] = []
    while True:
        if len(open_chats) < 16:
            system = systems[write.popular(len(systems))]
            open_chats.append((list(system), [len(system)]))
        said, turns = open_chats.pop(write.random.randrange(len(open_chats)))
        said += write.text(10, 200)
        yield make_prompt(tuple(said), tuple(turns), (turns[0],))
        turns.append(len(said))
        said += [1] * 2  # the answer
        turns.append(len(said))
        if len(turns) < 13:
            open_chats.append((said, turns))


def questions(write: Writer) -> Iterator[GenerateRequest]:
    """Yield short questions after one of 40 texts.

    In four of ten, the question's start merges with the text's last tokens.
    """
    texts = [write.text(500, 3000) for _ in range(40)]
    while True:
        text = texts[write.popular(len(texts))]
        merged = write.random.randint(1, 3) if write.random.random() < 0.4 else 0
        yield make_prompt([*text[: len(text) - merged], *write.text(5, 40)])


def edits(write: Writer) -> Iterator[GenerateRequest]:
    """Yield prompts about 30 documents. Before each prompt, the second half of its document is changed."""
    texts = [write.text(1000, 4000) for _ in range(30)]
    while True:
        number = write.popular(len(texts))
        text = texts[number]
        place = write.random.randint(len(text) // 2, len(text) - 1)
        texts[number] = [*text[:place], *write.text(5, 30), *text[place + 20 :]]
        yield make_prompt([*texts[number], *write.text(5, 20)])


def passages(write: Writer) -> Iterator[GenerateRequest]:
    """Yield questions, each after four of 40 passages with the most popular one first."""
    found = [write.text(200, 700) for _ in range(40)]
    beginning = write.text(150, 150)
    while True:
        chosen = sorted({write.popular(len(found)) for _ in range(4)})
        yield make_prompt([*beginning, *(token for one in chosen for token in found[one]), *write.text(5, 40)])


def strangers(write: Writer) -> Iterator[GenerateRequest]:
    """Yield long prompts without common prefixes, for which cached states are of no use."""
    while True:
        yield make_prompt(write.text(500, 4000))


def short(write: Writer) -> Iterator[GenerateRequest]:
    """Yield short prompts, half of them after one of 20 instructions."""
    instructions = [write.text(40, 150) for _ in range(20)]
    while True:
        before = instructions[write.popular(20)] if write.random.random() < 0.5 else []
        yield make_prompt([*before, *write.text(10, 120)])


TRACES: Mapping[str, Callable[[Writer], Iterator[GenerateRequest]]] = {
    trace.__name__: trace for trace in (chats, questions, edits, passages, strangers, short)
}


@click.command()
@click.option("--prompts", default=400, show_default=True, help="Prompts of each trace.")
@click.option("--states", default=64, show_default=True, help="How many states memory has room for.")
@click.option("--step", default=256, show_default=True, help="The most tokens of a step.")
@click.option("--seed", default=1, show_default=True)
@compared("tools.bench.traces")
def main(prompts: int, states: int, step: int, seed: int) -> Figures:
    """Measure the savings of cached states on traces of prompts."""
    figures: dict[str, float] = {}
    for name, trace in TRACES.items():
        served = run_trace(itertools.islice(trace(Writer(seed)), prompts), states, step)
        figures |= {f"{name}: {figure}": value for figure, value in served.items()}
    return figures


def run_trace(prompts: Iterator[GenerateRequest], states: int, step_tokens: int) -> Figures:
    """Replay a trace: generate two tokens after each prompt, one prompt after the other.

    The cache has room for `states` states, and a step for `step_tokens` tokens. Returns the figures of the trace.
    """
    clock = DeviceClock(work=lambda: 0.0)
    shape = tiny_shape(layers=1, width=64, head_size=64, ffn=8, vocab=_VOCAB)
    runner = ModelledRunner(shape, 1, _STEP_SECONDS, _TOKEN_SECONDS, clock)
    runner.max_tokens = runner.max_rows = step_tokens
    num_bytes = states * (shape.state_bytes + 4 * _VOCAB)
    config = CacheConfig(host_capacity=num_bytes, device_capacity=0, index_capacity=1 << 30)
    cache = make_cache(shape, "model", runner, config, clock=clock.now)
    scheduler = Scheduler(runner, _token_bytes, cache, clock=clock.now)
    num_prompts = num_tokens = 0
    for request in prompts:
        num_prompts, num_tokens = num_prompts + 1, num_tokens + len(request.prompt)
        scheduler.submit(num_prompts, request)
        while scheduler.has_work:
            scheduler.step()
    stats = cache.stats()
    assert stats.tiers[-1].used <= num_bytes
    return {
        "prompts that save nothing, %": 100 * (num_prompts - stats.hits) / num_prompts,
        "tokens run, %": 100 * (num_tokens - stats.tokens_saved) / num_tokens,
        "modelled ms a prompt": 1e3 * clock.now() / num_prompts,
        "states kept a prompt": stats.tiers[-1].stored / num_prompts,
    }


def _token_bytes(token: int) -> bytes:
    return {LINE: b"\n", SENTENCE: b"."}.get(token, b"x")


if __name__ == "__main__":
    main()
