"""`python -m tools.bench`: measure decode speed by slots, prefill speed by length, and the time of each part of a step.

Prints a table and writes JSON. With --against, this commit and another one are measured in turns, each by its own
`tools.bench`.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from rnn_engine.cli.benchmark import Measurement, measure_decode, measure_prefill, profile_decode, profile_prefill
from rnn_engine.forward import GpuRunner
from rnn_engine.gpu import Recorder, measure_copy
from rnn_engine.loading.runner import load_runner
from tools.bench.random_model import SHAPES, RandomModel
from tools.bench.turns import against, against_option, comma_separated, measure_forward, rounds_option

_WARM_UP = 2
_numbers = comma_separated(int)


@click.command()
@click.option(
    "--shapes", default="0.1B", show_default=True, help=f"Shapes of models, separated by commas: {', '.join(SHAPES)}."
)
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve, except cpu.")
@click.option("--weights", default="f16", show_default=True, help="As for rnn-engine serve, except auto.")
@click.option(
    "--slots", callback=_numbers, default="1,8", show_default=True, help="Sequences at decode, separated by commas."
)
@click.option(
    "--lengths",
    callback=_numbers,
    default="64",
    show_default=True,
    help="Tokens of a prompt at prefill, separated by commas.",
)
@click.option("--repeats", default=10, show_default=True, help="Timed runs of each figure.")
@click.option("--parts", is_flag=True, help="Also time the kernels of a step.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures as JSON.")
@against_option
@rounds_option
def main(
    shapes: str,
    device: str,
    weights: str,
    slots: list[int],
    lengths: list[int],
    repeats: int,
    parts: bool,
    out: Path | None,
    other: Path | None,
    rounds: int,
) -> None:
    """Measure the forward pass of random RWKV-7 models of real shapes on a device."""
    if other is not None:
        if parts or out is not None:
            raise click.UsageError("--against prints only tokens per second; leave out --parts and --out")
        counts = {"--slots": slots, "--lengths": lengths}
        arguments = ["--shapes", shapes, "--device", device, "--weights", weights, "--repeats", str(repeats)]
        arguments += [part for name, values in counts.items() for part in (name, ",".join(map(str, values)))]
        against(other, lambda tree: measure_forward(arguments, tree), rounds)
        return
    results = [measure(name, device, weights, slots, lengths, repeats, parts) for name in shapes.split(",")]
    if out is not None:
        out.write_text(json.dumps(results, indent=2) + "\n", "utf-8")


def measure(
    name: str, device: str, weights: str, slots: list[int], lengths: list[int], repeats: int, parts: bool
) -> dict[str, Any]:
    """Load a random model of the shape `name`, measure it, print its figures, and return them."""
    begun = time.perf_counter()
    runner = load_runner(RandomModel(SHAPES[name]), device, weights=weights, num_slots=max(slots))
    if not isinstance(runner, GpuRunner):
        raise click.UsageError("--device cpu has no kernels to measure; use rnn-engine bench")
    with closing(runner):
        info = runner.device.info
        bandwidth = measure_copy(runner.device)
        result: dict[str, Any] = {
            "shape": name,
            "sizes": asdict(runner.shape),
            "weights": weights,
            "device": asdict(info),
            "host": f"{platform.system()} {platform.machine()}",
            "load_seconds": round(time.perf_counter() - begun, 2),
            "device_bytes": runner.allocated_bytes,
            "copy_gb_per_second": round(bandwidth / 1e9, 2),
            "repeats": repeats,
            "max_tokens": runner.max_tokens,
        }
        click.echo(f"{name} {weights} on {info.name} ({info.backend}), copy {bandwidth / 1e9:.1f} GB/s")
        lines = [_decode(runner, count, repeats, bandwidth) for count in slots]
        lines += [asdict(measure_prefill(runner, length, repeats, time.perf_counter)) for length in lengths]
        for line in lines:
            click.echo("  " + "  ".join(f"{key} {_short(value)}" for key, value in line.items()))
        result["results"] = lines
        if parts:
            result["parts"] = _parts(runner, max(slots), max(lengths), repeats)
    return result


def _decode(runner: GpuRunner, slots: int, repeats: int, bandwidth: float) -> dict[str, Any]:
    """Return the figures of decode steps with `slots` sequences.

    They include the bytes that a step reads, and the share of the device's `bandwidth` in bytes per second that it
    reaches.
    """
    line: Measurement = measure_decode(runner, slots, repeats, time.perf_counter)
    num_bytes = runner.weight_bytes + slots * runner.shape.state_bytes
    read_per_second = num_bytes / (line.median_ms / 1e3)
    return {
        **asdict(line),
        "dispatches": len(runner.plan(slots, slots, slots).dispatches),
        "host_ms": 1e3 * _host_seconds(runner, slots, repeats),
        "read_mb": num_bytes / 1e6,
        "read_gb_per_second": read_per_second / 1e9,
        "share_of_copy_bandwidth": read_per_second / bandwidth,
    }


def _host_seconds(runner: GpuRunner, slots: int, repeats: int) -> float:
    """Return the median seconds to encode and submit a decode step's plan, without waiting for the device."""
    plan, recorder, seconds = runner.plan(slots, slots, slots), Recorder(runner.device), list[float]()
    for _ in range(_WARM_UP + repeats):
        begun = time.perf_counter()
        submission = recorder.submit(plan)
        seconds.append(time.perf_counter() - begun)
        recorder.wait(submission)
    return statistics.median(seconds[_WARM_UP:])


def _parts(runner: GpuRunner, slots: int, length: int, repeats: int) -> dict[str, dict[str, float]]:
    profiles = [profile_decode(runner, count, repeats) for count in sorted({1, slots})]
    profiles.append(profile_prefill(runner, length, repeats))
    found = {}
    for profile in profiles:
        found[profile.step] = {kernel.part: round(1e3 * kernel.seconds, 3) for kernel in profile.kernels}
        click.echo(
            f"  {profile.step}, ms: " + ", ".join(f"{part} {ms:.2f}" for part, ms in found[profile.step].items())
        )
    return found


def _short(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if value < 100 else f"{value:.1f}"


if __name__ == "__main__":
    main()
