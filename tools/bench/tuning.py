"""Holds the search for kernels against one that measures every variant: python -m tools.bench.tuning

Both run on the same model in one process. Then what each of them chose, and the fixed choice, are measured in turns.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace

import click

from rnn_engine.forward import GpuRunner
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.step import StepLimits
from rnn_engine.forward.tuner import Tuner
from rnn_engine.forward.tuning import tuning_for
from rnn_engine.forward.weight_choice import parse_weights
from rnn_engine.gpu import open_device
from rnn_engine.loading.kernel_choices import kernel_limits
from rnn_engine.versions.table import VERSIONS
from tools.bench.random_model import SHAPES, RandomModel


@click.command()
@click.option("--shape", type=click.Choice(list(SHAPES)), default="0.1B", show_default=True)
@click.option("--layers", default=3, show_default=True, help="How many of the shape's layers the model has.")
@click.option("--weights", default="f16", show_default=True)
@click.option("--tokens", default="1,8,64", show_default=True, help="The counts of tokens to choose kernels for.")
@click.option("--seconds", default=10.0, show_default=True, help="What the search may take.")
@click.option("--rounds", default=7, show_default=True, help="Turns of the measurement in the end.")
@click.option("--processor", is_flag=True, help="Count seconds of processor time, for a machine with other work.")
def main(shape: str, layers: int, weights: str, tokens: str, seconds: float, rounds: int, processor: bool) -> None:
    """Print what the search in its time and the exhaustive one chose, and the times of both and of the fixed choice."""
    model = RandomModel(replace(SHAPES[shape], num_layers=layers))
    device = open_device()
    limits = kernel_limits(device)
    step = StepLimits(num_slots=8, max_tokens=64, max_rows=8, num_candidates=128)
    tuning = tuning_for(device.info, can_broadcast=limits.can_broadcast)
    format_of, activations = parse_weights(weights, layers)
    matmuls = MatMulKernels(device.kernels, tuning, step, activations=activations)
    with closing(device.allocate()) as memory:
        runner = GpuRunner(
            model,
            VERSIONS.get(model.shape.version).load_layers,
            device,
            memory,
            matmuls,
            format_of=format_of,
            limits=step,
            progress=lambda *_: None,
        )
        counts = tuple(map(int, tokens.split(",")))
        tuner = Tuner(runner, matmuls, limits, counts=counts)
        begun = time.process_time(), time.monotonic()
        quick = tuner.search(seconds, _silent, clock=time.process_time if processor else time.monotonic)
        spent = time.process_time() - begun[0], time.monotonic() - begun[1]
        click.echo(f"{device.info.name}, {shape} with {layers} layers, {weights}")
        click.echo(f"the search took {spent[1]:.1f} s, {spent[0]:.1f} s of processors")
        thorough = tuner.search(0, _silent, exhaustive=True)
        for key, best in thorough.items():
            found = quick[key].variant if key in quick else best.default
            times = tuner.times(*key, (found, best.variant, best.default), rounds)
            click.echo(
                f"{best.kind} {best.tokens:3} tokens: search {found} {1e6 * times[found]:.0f} us,"
                f" exhaustive {best.variant} {1e6 * times[best.variant]:.0f} us,"
                f" fixed {best.default} {1e6 * times[best.default]:.0f} us;"
                f" search / exhaustive {times[found] / times[best.variant]:.3f},"
                f" fixed / search {times[best.default] / times[found]:.3f}"
            )


def _silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


if __name__ == "__main__":
    main()
