"""`python -m tools.bench.host`: measure the host's time per token, as tokens per second without a model."""

from __future__ import annotations

import gc
from itertools import product

import click

from tools.bench.host.modes import MODES, Load
from tools.bench.turns import Figures, compared


@click.command()
@click.option("--modes", default="scheduler,engine,http", show_default=True)
@click.option("--samplers", default="nucleus,penalties", show_default=True)
@click.option("--slots", default="8,128", show_default=True)
@click.option("--tokens", default=128, show_default=True, help="Tokens of each request.")
@click.option("--seconds", default=3.0, show_default=True, help="Seconds for which each figure is measured.")
@click.option("--answers", default="words", show_default=True, help="words, json, schema or object; see modes.py.")
@click.option("--steps", default="0", show_default=True, help="Milliseconds that a step of the runner takes.")
@compared("tools.bench.host")
def main(modes: str, samplers: str, slots: str, tokens: int, seconds: float, answers: str, steps: str) -> Figures:
    """Measure scheduler, engine and HTTP streaming, with a runner that answers at once or after a modelled time.

    It has a vocabulary of 65,536 tokens and gives 128 candidates a row. If steps take time, the table also shows the
    share of that time in which the device runs tokens: tokens a second times seconds a step, divided by slots.
    """
    gc.collect()
    gc.freeze()  # as a server does, so that tokens do not pay for imports
    figures = {}
    for step, mode, sampler, count in product(
        steps.split(","), modes.split(","), samplers.split(","), slots.split(",")
    ):
        step_seconds = float(step) / 1e3
        rate = MODES[mode](Load(int(count), sampler, tokens, seconds, answers, step_seconds))
        name = f"{mode}, {sampler}, {count} slots"
        if step_seconds:
            name += f", {step} ms a step"
            figures[f"{name}, share of the device's time"] = rate.per_second * step_seconds / int(count)
        figures[f"{name}, tok/s"] = rate.per_second
        figures[f"{name}, tok/CPU s"] = rate.per_cpu_second
    return figures


if __name__ == "__main__":
    main()
