"""`python -m tools.fuzz.kernels`: check that the demo model generates the same tokens with random kernel variants.

Logits may differ by rounding alone (`ROUNDING` of the greatest). So a token is the same, with two exceptions: two
greedy candidates are that near to each other, or a random number is that near to the border between two tokens.
"""

from __future__ import annotations

import time
from contextlib import closing

import click
import numpy as np

from rnn_engine.demo import model_path
from rnn_engine.forward.variants import KernelLimits, MatMulVariant
from rnn_engine.loading.kernel_choices import kernel_limits
from rnn_engine.loading.runner import open_model
from tests.support.gpu import open_checked
from tests.support.tuned import load_with_matmuls
from tests.support.tuned_tokens import Choices, Draws, Works, count_same, load_chosen, possible, works_of

_COUNTS = (1, 8, 16, 32, 64)


@click.command()
@click.option("--requests", default=1000, show_default=True)
@click.option("--choices", default=10, show_default=True, help="How many times new kernels are chosen.")
@click.option("--tokens", default=16, show_default=True, help="Tokens that a request generates.")
@click.option("--seed", default=0, show_default=True)
def main(requests: int, choices: int, tokens: int, seed: int) -> None:
    """Compare the tokens of random requests; raise AssertionError if they differ by more than rounding explains."""
    began, chance = time.monotonic(), np.random.default_rng(seed)
    limits = kernel_limits(open_checked("software")[0])
    with closing(open_model(model_path())) as model:
        usual, matmuls = load_with_matmuls(model)
        works = works_of(matmuls, _COUNTS)
        ended = 0
        for number in range(choices):
            with closing(load_chosen(model, _choose(works, limits, chance))) as other:
                for request in range(requests // choices):
                    prompt = chance.integers(model.shape.vocab_size, size=int(chance.integers(1, 65))).tolist()
                    temperature = float(chance.choice([0.0, 0.5, 1.0]))
                    draws = Draws(prompt, seed + number * requests + request, temperature, tokens)
                    ended += count_same(usual, other, draws) < tokens
            click.echo(f"{(number + 1) * (requests // choices)} requests after {time.monotonic() - began:.0f} s")
        usual.close()
    click.echo(f"all logits within rounding; {ended} requests came to a token that rounding decides")


def _choose(works: Works, limits: KernelLimits, chance: np.random.Generator) -> Choices:
    """Choose a random kernel variant for each matmul in `works`.

    For each count of tokens there are two variants, and each matmul gets one of the two. There are no more than two
    since each takes seconds to compile.
    """
    pairs: dict[int, list[MatMulVariant]] = {}
    for (_, count), work in works.items():
        every = possible(work, limits)
        pairs.setdefault(count, [every[index] for index in chance.integers(len(every), size=2)])
    return {key: pairs[key[1]][chance.integers(2)] for key in works}


if __name__ == "__main__":
    main()
