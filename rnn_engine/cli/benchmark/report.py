"""Shows what was measured: as tables in the terminal, as JSON, as one page of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
from jinja2 import Environment
from rich.console import Console
from rich.table import Table

from rnn_engine.atomic_file import atomic_file
from rnn_engine.cli.benchmark.measure import Measurement, Setting
from rnn_engine.cli.benchmark.profile import KernelTime, StepProfile
from rnn_engine.cli.describe import describe_shape
from rnn_engine.gpu import DevicePeaks


@dataclass(frozen=True, slots=True)
class Benchmark:
    """All that one run of `rnn-engine bench` measured."""

    setting: Setting
    results: Sequence[Measurement]
    peaks: DevicePeaks | None = None  # where kernels were timed
    profiles: Sequence[StepProfile] = ()

    @property
    def title(self) -> str:
        setting = self.setting
        return f"{setting.model}: {describe_shape(setting.shape)}; weights {setting.weights}"

    def as_json(self) -> dict[str, Any]:
        measured = {**asdict(self.setting), "results": [asdict(line) for line in self.results]}
        if self.peaks is None:
            return measured
        return {**measured, "peaks": asdict(self.peaks), "profiles": [asdict(profile) for profile in self.profiles]}


def share(reached: float, limit: float) -> str:
    """Return `reached` as a part of `limit`, or nothing where a kernel does none of that."""
    return f"{reached / limit:.0%}" if reached else ""


def print_tables(benchmark: Benchmark) -> None:
    click.echo(benchmark.title)
    click.echo(f"{benchmark.setting.device}, median of {benchmark.setting.repeats} runs")
    table = Table("phase", "slots", "tokens", "median ms", "tokens/s", box=None)
    for line in benchmark.results:
        table.add_row(
            line.phase, str(line.slots), str(line.tokens), f"{line.median_ms:.2f}", f"{line.tokens_per_second:.1f}"
        )
    Console().print(table)
    if benchmark.peaks is None:
        return
    click.echo(f"\nthe device reaches {describe_peaks(benchmark.peaks)}")
    for profile in benchmark.profiles:
        click.echo(f"\n{profile.step}: {describe_times(profile)}")
        Console().print(_kernel_table(profile.kernels, benchmark.peaks))


def describe_peaks(peaks: DevicePeaks) -> str:
    f16 = f", {peaks.f16 / 1e9:.1f} GFLOP/s in f16" if peaks.f16 is not None else ""
    return f"{peaks.copy / 1e9:.1f} GB/s at a copy, {peaks.f32 / 1e9:.1f} GFLOP/s in f32{f16}"


def describe_times(profile: StepProfile) -> str:
    return (
        f"device {1e3 * profile.device:.2f} ms in {sum(kernel.dispatches for kernel in profile.kernels)} dispatches;"
        f" host {1e3 * profile.submit:.2f} ms until it is submitted, then {1e3 * profile.wait:.2f} ms until it is read"
    )


def _kernel_table(kernels: Sequence[KernelTime], peaks: DevicePeaks) -> Table:
    table = Table("part", "kernel", "runs", "ms", "MB", "GB/s", "of copy", "GFLOP/s", "of f32", box=None)
    for kernel in kernels:
        table.add_row(
            kernel.part,
            kernel.kernel,
            str(kernel.dispatches),
            f"{1e3 * kernel.seconds:.2f}",
            f"{kernel.moved_bytes / 1e6:.1f}" if kernel.moved_bytes else "",
            f"{kernel.bytes_per_second / 1e9:.1f}" if kernel.moved_bytes else "",
            share(kernel.bytes_per_second, peaks.copy),
            f"{kernel.operations_per_second / 1e9:.1f}" if kernel.operations else "",
            share(kernel.operations_per_second, peaks.f32),
        )
    return table


def write_report(benchmark: Benchmark, path: Path) -> None:
    """Write one page of HTML that needs no other file. Raises OSError where it can't be written."""
    template = (files("rnn_engine.cli.benchmark") / "report.html").read_text("utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["share"] = share
    page = environment.from_string(template).render(
        benchmark=benchmark, describe_peaks=describe_peaks, describe_times=describe_times
    )
    with atomic_file(path) as file:
        file.write(page.encode())
