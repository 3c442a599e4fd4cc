"""Measure a model's steps, from the token ids to the candidates on the host, and find its fastest kernels."""

from __future__ import annotations

import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from rnn_engine.cli.options import describe_shape
from rnn_engine.cli.reports import share, write_page
from rnn_engine.demo import model_path
from rnn_engine.errors import DeviceError
from rnn_engine.forward import GpuRunner
from rnn_engine.forward.cost import cost_on, describe_cost, predict_dispatches
from rnn_engine.forward.step import StepSize
from rnn_engine.forward.tuner import Choice
from rnn_engine.forward.tuning import MatMulClass
from rnn_engine.gpu import DevicePeaks, Dispatch, measure_peaks, time_dispatches
from rnn_engine.llm.progress import progress_bar
from rnn_engine.loading.kernel_choices import TuneOrder
from rnn_engine.loading.memory import plan_memory
from rnn_engine.loading.runner import RunnerSize, load_runner, open_model
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.types import ModelShape, Runner, TokenRun, run_step

_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of a benchmark's results: the speed of decode with some number of slots, or of one prompt's prefill."""

    phase: str  # decode or prefill
    slots: int  # sequences that run at the same time
    tokens: int  # of one sequence in one repetition
    median_ms: float  # of one repetition: a step at decode, a whole prompt at prefill
    tokens_per_second: float  # over all sequences
    predicted_ms: float | None = None  # the same by `forward.cost`; None on the processor


def measure_decode(runner: Runner, slots: int, /, repeats: int, clock: Callable[[], float]) -> Measurement:
    """Measure the speed of decode steps in which `slots` sequences run one token each. `clock` returns seconds."""
    for slot in range(slots):
        runner.write_state(slot, None)
    batch = [TokenRun(slot, [_token(runner.shape, slot)], rows=1) for slot in range(slots)]
    median = median_seconds(lambda: run_step(runner, batch), repeats, clock)
    predicted = predict_ms(runner, [StepSize(slots, slots, slots)])
    return Measurement("decode", slots, 1, 1e3 * median, slots / median, predicted)


def measure_prefill(runner: Runner, length: int, /, repeats: int, clock: Callable[[], float]) -> Measurement:
    """Measure the prefill of a prompt of `length` tokens in the largest steps. `clock` returns seconds."""
    prompt = [_token(runner.shape, position) for position in range(length)]
    parts = [prompt[start : start + runner.max_tokens] for start in range(0, length, runner.max_tokens)]
    runs = [TokenRun(0, part) for part in parts[:-1]] + [TokenRun(0, parts[-1], rows=1)]

    def run_prompt() -> None:
        runner.write_state(0, None)
        for run in runs:
            run_step(runner, [run])

    median = median_seconds(run_prompt, repeats, clock)
    predicted = predict_ms(runner, [StepSize(len(run.tokens), 1, run.rows) for run in runs])
    return Measurement("prefill", 1, length, 1e3 * median, length / median, predicted)


def predict_ms(runner: Runner, steps: Sequence[StepSize]) -> float | None:
    """Return the predicted milliseconds of `steps` one after another, or None if `runner` has no GPU."""
    if not isinstance(runner, GpuRunner) or runner.device.info.is_software:
        return None
    return 1e3 * sum(sum(_predict(runner, step)) for step in steps)


def _predict(runner: GpuRunner, step: StepSize) -> Iterable[float]:
    """Return the predicted seconds of each dispatch of a step; 0 on a software device, for which there are none."""
    plan = runner.plan(step.num_tokens, step.num_runs, step.num_rows)
    if runner.device.info.is_software:
        return [0.0] * len(plan.dispatches)
    return predict_dispatches(plan.dispatches, runner.matmuls, step, cost_on(runner.device.info))


def _token(shape: ModelShape, position: int) -> int:
    """Return a valid token id for `position` in a prompt. Any would do, since speed does not depend on the token."""
    return (position * 31 + 1) % shape.vocab_size


def median_seconds(work: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    """Call `work` a few times to warm up, then `repeats` times; return the median duration in seconds by `clock`."""
    for _ in range(_WARM_UP):
        work()
    seconds = []
    for _ in range(repeats):
        begun = clock()
        work()
        seconds.append(clock() - begun)
    return statistics.median(seconds)


# Profiles: the time of a step, divided on the device by kernel and on the host by activity.


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One part of a model in a step, such as "key", over all layers: time, bytes of matrices and states, operations."""

    part: str
    kernel: str
    dispatches: int
    seconds: float
    predicted: float  # seconds
    moved_bytes: int
    operations: int

    @property
    def bytes_per_second(self) -> float:
        return self.moved_bytes / self.seconds if self.seconds else 0.0

    @property
    def operations_per_second(self) -> float:
        return self.operations / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class StepProfile:
    """The median seconds that a decode or prefill step takes on the device by kernel, and on the host by activity."""

    step: str
    kernels: tuple[KernelTime, ...]  # in the order in which they run first
    submit: float  # the host: encode the batch and the dispatches, hand them over
    wait: float  # the host waits, and decodes what comes back

    @property
    def device(self) -> float:
        return sum(kernel.seconds for kernel in self.kernels)


def profile_decode(runner: GpuRunner, slots: int, /, repeats: int) -> StepProfile:
    """Measure the times of the parts of a decode step, in which each of `slots` sequences runs one token."""
    return _profile(runner, f"decode, {slots} slot(s)", [TokenRun(slot, [1], rows=1) for slot in range(slots)], repeats)


def profile_prefill(runner: GpuRunner, length: int, /, repeats: int) -> StepProfile:
    """Measure the times of the parts of a prefill step, with as many of a prompt's `length` tokens as a step takes."""
    count = min(length, runner.max_tokens)
    return _profile(runner, f"prefill, {count} tokens", [TokenRun(0, [1] * count, rows=1)], repeats)


def _profile(runner: GpuRunner, step: str, batch: Sequence[TokenRun], repeats: int) -> StepProfile:
    for run in batch:
        runner.write_state(run.slot, None)
    run_step(runner, batch)  # so that the kernels are compiled, and find a whole batch in the buffers
    submits, waits = zip(*(_time_on_host(runner, batch) for _ in range(repeats)), strict=True)
    size = StepSize(sum(len(run.tokens) for run in batch), len(batch), len(batch))
    plan = runner.plan(size.num_tokens, size.num_runs, size.num_rows)
    seconds = time_dispatches(runner.device, plan, repeats)
    kernels = _by_part(plan.dispatches, list(zip(seconds, _predict(runner, size), strict=True)))
    return StepProfile(step, kernels, statistics.median(submits), statistics.median(waits))


def _time_on_host(runner: GpuRunner, batch: Sequence[TokenRun]) -> tuple[float, float]:
    begun = time.perf_counter()
    ticket = runner.submit(batch)
    submitted = time.perf_counter()
    runner.collect(ticket)
    return submitted - begun, time.perf_counter() - submitted


def _by_part(dispatches: Sequence[Dispatch], times: Sequence[tuple[float, float]]) -> tuple[KernelTime, ...]:
    """Add up the measured and the predicted seconds of dispatches by part and kernel."""
    parts: defaultdict[tuple[str, str], list[tuple[Dispatch, float, float]]] = defaultdict(list)
    for dispatch, (taken, predicted) in zip(dispatches, times, strict=True):
        parts[_part(dispatch), dispatch.kernel.label].append((dispatch, taken, predicted))
    return tuple(
        KernelTime(
            part,
            kernel,
            len(timed),
            sum(taken for _, taken, _ in timed),
            sum(predicted for _, _, predicted in timed),
            sum(dispatch.moved_bytes for dispatch, _, _ in timed),
            sum(dispatch.operations for dispatch, _, _ in timed),
        )
        for (part, kernel), timed in parts.items()
    )


def _part(dispatch: Dispatch) -> str:
    words = dispatch.label.split()
    return " ".join(words[2:] if words[0] == "layer" else words)


# The description of a device in a report, by which others can compare it with theirs.


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """The device of a benchmark, its driver and limits, the kernels that were chosen for it, and a test of itself."""

    system: str
    versions: str  # of the packages that use the device
    driver: str
    kind: str
    features: Sequence[str]
    limits: Mapping[str, int]
    kernels: Mapping[str, Mapping[str, str]]  # by class of matrices and count of tokens
    error: float  # the greatest difference of the demo's logits from the processor's, in parts of the greatest logit


def report_device(runner: GpuRunner) -> DeviceReport:
    """Describe the device of `runner`, and compare the demo model on it with the same on the processor."""
    device, info, tuning = runner.device, runner.device.info, runner.matmuls.tuning
    kinds = {part.kind for matmul in runner.matmuls.bound for part, _ in matmul.parts}
    counts = sorted(tuning.token_counts(runner.max_tokens))
    return DeviceReport(
        platform.platform(),
        ", ".join(f"{name} {version(name)}" for name in ("rnn-engine", "wgpu", "numpy")),
        f"{info.backend}, {info.driver}",
        info.kind,
        sorted(device.wgpu_device.features),
        {name: value for name, value in device.wgpu_device.limits.items() if value},
        {str(kind): {str(count): str(tuning.matmul(count, kind)) for count in counts} for kind in sorted(kinds)},
        _self_test(str(info.index)),
    )


def _self_test(device: str) -> float:
    """Return how far the demo's logits on `device` are from the processor's, in parts of the greatest."""
    logits = []
    for each in (device, "cpu"):
        with (
            open_model(model_path()) as opened,
            closing(load_runner(opened, each, RunnerSize(1), weights="f32")) as runner,
        ):
            prompt = [_token(runner.shape, position) for position in range(40)]
            steps = [prompt, *([token] for token in prompt[:4])]  # in kernels for many tokens, and for one
            logits.append([run_step(runner, [TokenRun(0, step, rows=1)]).full_row(0).copy() for step in steps])
    own, expected = np.array(logits)
    return float(np.abs(own - expected).max() / np.abs(expected).max())


# What was measured is shown as tables in the terminal, as JSON, or as one page of HTML.


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Everything that `rnn-engine bench` has measured: conditions, results, peak speeds and profiles."""

    model: str
    shape: ModelShape
    device: str
    weights: str
    repeats: int
    results: Sequence[Measurement]
    peaks: DevicePeaks | None = None  # if kernels were timed
    profiles: Sequence[StepProfile] = ()
    predicted_from: str = ""  # what the predictions are made from, in a sentence
    device_report: DeviceReport | None = None  # if it was asked for, and the device is not the processor

    @property
    def title(self) -> str:
        return f"{self.model}: {describe_shape(self.shape)}; weights {self.weights}"

    def as_json(self) -> dict[str, Any]:
        left_out = {"predicted_from"} if self.peaks is not None else {"predicted_from", "peaks", "profiles"}
        if self.device_report is None:
            left_out.add("device_report")
        return {name: value for name, value in asdict(self).items() if name not in left_out}


def measure(
    model: Path,
    loading: LoadSettings,
    slots: Sequence[int],
    lengths: Sequence[int],
    repeats: int,
    *,
    profile: bool,
    reports_device: bool,
) -> Benchmark:
    """Load a model and measure its speed; with `profile`, each kernel, too. Raises DeviceError if it can't.

    `repeats` steps are timed for each number of `slots` and each of the prompts' `lengths`.
    """
    with progress_bar("opening the model") as progress:
        with open_model(model, loading.loras) as opened:
            room, memory = RunnerSize(max(slots)), loading.device_memory
            plan = plan_memory(opened, loading.device, room, weights=loading.weights, device_memory=memory)
            runner = load_runner(
                opened,
                plan.device,
                room,
                weights=plan.weights,
                tune=TuneOrder(loading.tune_seconds),
                threads=loading.threads,
                progress=progress,
            )
        with closing(runner):
            profiled = _profiled(runner) if profile else None
            steps = [(f"decode, {count} slot(s)", measure_decode, profile_decode, count) for count in slots]
            steps += [(f"prefill, {length} tokens", measure_prefill, profile_prefill, length) for length in lengths]
            results: list[Measurement] = []
            for step, measure_step, _, size in steps:
                progress(step, len(results), len(steps))
                results.append(measure_step(runner, size, repeats, time.perf_counter))
            benchmark = Benchmark(model.name, runner.shape, plan.device, plan.weights, repeats, results)
            if isinstance(runner, GpuRunner):
                info = runner.device.info
                cost = "" if info.is_software else describe_cost(info)
                benchmark = replace(benchmark, device=info.name, weights=plan.weights, predicted_from=cost)
                if reports_device:
                    progress("comparing the demo model with the processor", 0, 1)
                    benchmark = replace(benchmark, device_report=report_device(runner))
            if profiled is not None:
                progress("measuring the device's peak speeds", 0, 1)
                peaks = measure_peaks(profiled.device)
                profiles: list[StepProfile] = []
                for step, _, profile_step, size in steps:
                    progress(f"kernels of {step}", len(profiles), len(steps))
                    profiles.append(profile_step(profiled, size, repeats))
                benchmark = replace(benchmark, peaks=peaks, profiles=profiles)
    return benchmark


def _profiled(runner: Runner) -> GpuRunner:
    if not isinstance(runner, GpuRunner):
        raise DeviceError("--profile times GPU kernels, and the device 'cpu' has none; choose another --device")
    if not runner.device.has_timestamps:
        raise DeviceError(f"--profile needs timestamp queries, which {runner.device.info.name} does not have")
    return runner


def print_tables(benchmark: Benchmark) -> None:
    click.echo(benchmark.title)
    click.echo(f"{benchmark.device}, median of {benchmark.repeats} runs")
    table = Table("phase", "slots", "tokens", "median ms", "tokens/s", "predicted ms", box=None)
    for line in benchmark.results:
        table.add_row(
            line.phase,
            str(line.slots),
            str(line.tokens),
            f"{line.median_ms:.2f}",
            f"{line.tokens_per_second:.1f}",
            "" if line.predicted_ms is None else f"{line.predicted_ms:.2f}",
        )
    Console().print(table)
    if benchmark.predicted_from:
        click.echo(benchmark.predicted_from)
    if benchmark.peaks is None:
        return
    click.echo(f"\nthe device's peak speeds: {describe_peaks(benchmark.peaks)}")
    for profile in benchmark.profiles:
        click.echo(f"\n{profile.step}: {describe_times(profile)}")
        Console(width=max(100, Console().width)).print(_kernel_table(profile.kernels, benchmark.peaks))


def describe_peaks(peaks: DevicePeaks) -> str:
    f16 = f", {peaks.f16 / 1e9:.1f} GFLOP/s in f16" if peaks.f16 is not None else ""
    return f"{peaks.copy / 1e9:.1f} GB/s at a copy, {peaks.f32 / 1e9:.1f} GFLOP/s in f32{f16}"


def describe_times(profile: StepProfile) -> str:
    return (
        f"device {1e3 * profile.device:.2f} ms in {sum(kernel.dispatches for kernel in profile.kernels)} dispatches;"
        f" host {1e3 * profile.submit:.2f} ms until it is submitted, then {1e3 * profile.wait:.2f} ms until it is read"
    )


def _kernel_table(kernels: Sequence[KernelTime], peaks: DevicePeaks) -> Table:
    table = Table("part", "kernel", "runs", "ms", "predicted", "MB", "GB/s", "of copy", "GFLOP/s", "of f32", box=None)
    for kernel in kernels:
        table.add_row(
            kernel.part,
            kernel.kernel,
            str(kernel.dispatches),
            f"{1e3 * kernel.seconds:.2f}",
            f"{1e3 * kernel.predicted:.2f}" if kernel.predicted else "",
            f"{kernel.moved_bytes / 1e6:.1f}" if kernel.moved_bytes else "",
            f"{kernel.bytes_per_second / 1e9:.1f}" if kernel.moved_bytes else "",
            share(kernel.bytes_per_second, peaks.copy),
            f"{kernel.operations_per_second / 1e9:.1f}" if kernel.operations else "",
            share(kernel.operations_per_second, peaks.f32),
        )
    return table


def write_report(benchmark: Benchmark, path: Path) -> None:
    """Write the results as one page of HTML that needs no other file. Raises OSError."""
    write_page(path, "report.html", benchmark=benchmark, describe_peaks=describe_peaks, describe_times=describe_times)


# Find the fastest kernels for a model's matrices on a device.


def tune(model: Path, loading: LoadSettings, *, seconds: float, half: bool) -> None:
    """Search for the fastest kernels, and show the choices. Raises DeviceError if the device has none."""
    device = loading.device
    if device == "cpu":
        raise DeviceError("the device 'cpu' has no kernels to choose from; choose another --device")
    found: dict[tuple[MatMulClass, int], Choice] = {}
    order = TuneOrder(seconds, anew=True, half=half, on_found=found.update)
    with progress_bar("opening the model") as progress, open_model(model, loading.loras) as opened:
        memory = loading.device_memory
        plan = plan_memory(opened, device, RunnerSize(), weights=loading.weights, device_memory=memory)
        load_runner(opened, device, weights=plan.weights, tune=order, progress=progress).close()
    _show_choices(found.values())


def _show_choices(choices: Iterable[Choice]) -> None:
    table = Table("matrices", "tokens", "kernel", "measured us", "fixed choice", "its us", "gain", box=None)
    for choice in sorted(choices, key=lambda choice: (choice.tokens, choice.kind)):
        table.add_row(
            str(choice.kind),
            str(choice.tokens),
            str(choice.variant),
            f"{1e6 * choice.measured:.0f}",
            str(choice.default),
            f"{1e6 * choice.default_measured:.0f}",
            f"{choice.gain:.2f}",
        )
    Console(width=max(160, Console().width)).print(table)
