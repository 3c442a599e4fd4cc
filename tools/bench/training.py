"""`python -m tools.bench.training`: the cost of a token of training, beside that of a token of a prompt.

Both run one text on the same device with the same random weights, in turns. A step of training is forward, backward and
update; all its tokens count in the loss. The time is by the clock, but that of all processors together for numpy and
software devices.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np

from rnn_engine.backward import TrainingDocument
from rnn_engine.forward import GpuRunner
from rnn_engine.loading.runner import RunnerSize, load_runner, open_model
from rnn_engine.loading.settings import LoraSettings
from rnn_engine.loading.trainer import TrainerSize, load_trainer
from rnn_engine.types import TokenRun, run_step
from tools.bench.peers import SHAPES, write_random_model
from tools.bench.turns import json_option, print_figures

_REPEATS = 2  # in turns after a warm-up; the least time counts


@click.command()
@click.option("--shape", type=click.Choice(list(SHAPES)), default="0.1B", show_default=True, help="The model's shape.")
@click.option("--tokens", default=256, show_default=True, help="The length of the text.")
@click.option("--device", default="0", show_default=True, help="The device, as `rnn-engine` takes it.")
@click.option("--weights", default="f16", show_default=True, help="The format of the weights.")
@click.option("--lora", is_flag=True, help="Train a LoRA and no state.")
@json_option
def main(shape: str, tokens: int, device: str, weights: str, lora: bool, as_json: bool) -> None:
    """Measure a step of training and a prefill of a text of --tokens tokens."""
    generator = np.random.default_rng(1)
    ids = generator.integers(1, 65536, tokens + 1).astype(np.int32)
    document = TrainingDocument(ids, np.array([0.0] + [1.0] * tokens, np.float32))
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        file = write_random_model(SHAPES[shape], Path(folder) / f"{shape}.safetensors")
        model = stack.enter_context(open_model(file))
        weights = "f32" if device == "cpu" else weights
        runner = load_runner(model, device, RunnerSize(1, max_tokens=tokens, max_rows=1), weights=weights)
        stack.enter_context(closing(runner))
        size = TrainerSize(tokens, 1, lora=LoraSettings() if lora else None)
        trainer = load_trainer(model, device, size, weights=weights)
        stack.enter_context(closing(trainer))
        prompt = [TokenRun(0, ids[:-1].tolist(), rows=1)]

        def train() -> None:
            trainer.accumulate([document], 1 / tokens)
            trainer.update(0.01)

        on_processor = not isinstance(runner, GpuRunner) or runner.device.info.is_software
        clock = time.process_time if on_processor else time.perf_counter
        seconds = np.zeros((1 + _REPEATS, 2))
        for turn in seconds:
            for side, work in enumerate((lambda: run_step(runner, prompt), train)):
                begun = clock()
                work()
                turn[side] = clock() - begun
        prefill, training = seconds[1:].min(axis=0).tolist()
    figures = {
        "prefill, ms a token": 1e3 * prefill / tokens,
        "training, ms a token": 1e3 * training / tokens,
        "a token of training costs, prefill tokens": training / prefill,
    }
    print_figures(figures, as_json)


if __name__ == "__main__":
    main()
