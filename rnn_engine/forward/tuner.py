"""The search for a model's fastest matmul kernels on its device, which times the variants that a cost model chooses."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median
from typing import Final, TypeAlias

import numpy as np

from rnn_engine.errors import DeviceError
from rnn_engine.forward.cost import cost_on
from rnn_engine.forward.gpu_runner import GpuRunner
from rnn_engine.forward.matmul import BoundMatMul, LoadedPart, MatMulKernels
from rnn_engine.forward.tuning import TOKEN_COUNTS, MatMulClass, rounded_count
from rnn_engine.forward.variants import KernelLimits, MatMulVariant, variants
from rnn_engine.gpu import BindGroup, Device, Memory, Plan, time_plan

_REPEATS: Final = 3
_TIMED_SECONDS: Final = 3e-3  # that one measurement should take
_LONG_SECONDS: Final = 0.1  # a measurement that takes this long is not repeated
_MOST_DISPATCHES: Final = 64  # of one measurement
_LEAST_SHARE: Final = 0.04  # of the time of all matmuls at a count of tokens; a class below it is not tuned
_WORTH_A_TRIAL: Final = 2.0  # times the least predicted cost; variants beyond are not tried
_FINALISTS: Final = 3  # of a task; they are measured again in turns
_ROUNDS: Final = 5
_FINAL_PART: Final = 0.25  # of the time, for the finalists
_LEAST_GAIN: Final = 0.03  # below it the fixed choice is kept
_LEAST_GAIN_UNSURE: Final = 0.1  # the same for a variant that was measured fewer than `_SURE` times
_SURE: Final = 3

_log = logging.getLogger(__name__)

Report: TypeAlias = Callable[[str, int, int], None]
"""Called with the current task, the seconds that have passed, and the seconds of the whole search."""

Chosen: TypeAlias = Mapping[tuple[MatMulClass, int], "Choice"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The variant chosen for a class of matmuls and a token count, with its times and those of the fixed choice.

    Times are seconds per dispatch. `default_measured` is infinite if the device rejects the fixed choice.
    """

    kind: MatMulClass
    tokens: int
    variant: MatMulVariant
    measured: float
    default: MatMulVariant
    default_measured: float

    @property
    def gain(self) -> float:
        return self.default_measured / self.measured


@dataclass(slots=True)
class _Task:
    """A class of matmuls at a token count for which a kernel variant is searched, with the times measured so far."""

    kind: MatMulClass
    tokens: int
    parts: list[tuple[BoundMatMul, LoadedPart, BindGroup]]  # of all layers
    default: MatMulVariant
    predicted: dict[MatMulVariant, float]
    measured: dict[MatMulVariant, list[float]] = field(default_factory=dict)
    rejected: set[MatMulVariant] = field(default_factory=set)  # by the device

    @property
    def best_predicted(self) -> float:
        return min(self.predicted.values())

    @property
    def work_seconds(self) -> float:
        return len(self.parts) * self.predicted[self.default]

    def ranked(self) -> list[MatMulVariant]:
        """Return the kernel variants that were measured, the fastest first."""
        return sorted(self.measured, key=lambda variant: median(self.measured[variant]))

    def choice(self) -> Choice:
        """Return the fastest measured variant, or the fixed choice if that is hardly slower. Needs a measured
        variant.
        """
        default = median(self.measured.get(self.default, (math.inf,)))
        best = self.ranked()[0]
        gain = _LEAST_GAIN if len(self.measured[best]) >= _SURE else _LEAST_GAIN_UNSURE
        if median(self.measured[best]) > (1 - gain) * default:
            best = self.default
        return Choice(self.kind, self.tokens, best, median(self.measured[best]), self.default, default)


class KernelTuner:
    """Searches for the fastest matmul kernels of one loaded model by timing them. No step may run meanwhile."""

    def __init__(
        self,
        runner: GpuRunner,
        matmuls: MatMulKernels,
        limits: KernelLimits,
        *,
        half: bool = False,
        counts: Sequence[int] = TOKEN_COUNTS,
    ) -> None:
        """Prepare to tune the kernels `matmuls` for token `counts`. `half` also tries products in f16."""
        self._runner = runner
        self._matmuls = matmuls
        self._device = runner.device
        self._limits = limits
        self._half = half
        self._counts = counts
        self._cost = cost_on(runner.device.info)

    def search(
        self,
        seconds: float,
        report: Report,
        *,
        known: Collection[MatMulClass] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> Chosen:
        """Return the fastest kernel variant found for each class of matmuls and token count.

        Classes that are `known` or hardly matter are left out. The search ends after `seconds`, once the trial under
        way is done, or at Ctrl-C, and returns what was found until then.
        """
        begun = clock()
        tasks = [task for task in _that_matter(list(self._tasks())) if task.kind not in known]

        def left(part: float) -> bool:
            gone = clock() - begun
            report("choosing kernels", min(round(gone), round(seconds)), round(seconds))
            return gone < part * seconds

        with closing(self._device.allocate()) as memory:
            measure = _Measure(self._device, memory)
            try:
                for variant, fitting in self._trials(tasks):
                    for task in fitting:
                        for tried in (variant,) if task.measured else (task.default, variant):
                            if left(1 - _FINAL_PART):
                                self._try(measure, task, tried)
                for _ in range(_ROUNDS):
                    for task in tasks:
                        for variant in {task.default: None, **dict.fromkeys(task.ranked()[:_FINALISTS])}:
                            if len(task.measured) > 1 and left(1):
                                self._try(measure, task, variant)
            except KeyboardInterrupt:
                _log.info("the search for kernels was interrupted; the best ones found so far are used")
        return {(task.kind, task.tokens): task.choice() for task in tasks if task.measured}

    def times(
        self, kind: MatMulClass, tokens: int, wanted: Sequence[MatMulVariant], rounds: int
    ) -> dict[MatMulVariant, float]:
        """Return each variant's median seconds of `rounds` in turns. Raises DeviceError if one is rejected."""
        (task,) = (task for task in self._tasks() if (task.kind, task.tokens) == (kind, tokens))
        with closing(self._device.allocate()) as memory:
            measure = _Measure(self._device, memory)
            for _ in range(rounds):
                for variant in wanted:
                    task.measured.setdefault(variant, []).append(measure(task, variant))
        return {variant: median(task.measured[variant]) for variant in wanted}

    def _tasks(self) -> Iterator[_Task]:
        parts: defaultdict[tuple[MatMulClass, bool], dict[int, tuple[BoundMatMul, LoadedPart, BindGroup]]]
        parts = defaultdict(dict)
        for matmul in self._matmuls.bound:
            for part, bind_group in matmul.parts:
                parts[part.kind, matmul.counts_rows].setdefault(id(part), (matmul, part, bind_group))
        # Those that a single token is multiplied with by other kernels.
        others = {id(part) for matmul in self._matmuls.bound if matmul.singles for part, _ in matmul.parts}
        for (kind, counts_rows), each in parts.items():
            most = self._runner.max_rows if counts_rows else self._runner.max_tokens
            for tokens in self._counts:
                own = [part for number, part in each.items() if tokens > 1 or number not in others]
                if own and tokens <= most:
                    yield self._task(kind, tokens, own)

    def _task(self, kind: MatMulClass, tokens: int, parts: list[tuple[BoundMatMul, LoadedPart, BindGroup]]) -> _Task:
        part = parts[0][1]
        work = part.work(tokens)
        software = self._device.info.is_software
        predicted = {
            variant: self._cost.predict(work, variant)
            for variant in variants(self._limits, work, software=software, half=self._half)
        }
        default = self._matmuls.tuning.fixed_matmul(tokens, kind)
        return _Task(kind, tokens, parts, default, {default: self._cost.predict(work, default), **predicted})

    def _trials(self, tasks: list[_Task]) -> Iterator[tuple[MatMulVariant, list[_Task]]]:
        """Yield the kernel variants to time, the most promising first, each with the classes of matmuls to time it for.

        On a software device, whose times the cost model does not predict, no variant is left out.
        Variants for steps of one sequence, of all slots and of prompts come before all others.
        Tasks that need the same kernel share its compilation.
        """
        usual = {1, rounded_count(self._runner.num_slots), rounded_count(self._runner.max_tokens)}
        tries_all = self._device.info.is_software
        promise: dict[tuple[bool, str, MatMulVariant], float] = {}
        fitting: defaultdict[tuple[bool, str, MatMulVariant], list[_Task]] = defaultdict(list)
        for task in tasks:
            for variant, seconds in task.predicted.items():
                times = seconds / task.best_predicted
                if variant == task.default or (times > _WORTH_A_TRIAL and not tries_all):
                    continue
                key = task.tokens not in usual, task.kind.weights, variant
                promise[key] = min(times, promise.get(key, math.inf))
                fitting[key].append(task)
        for key in sorted(promise, key=lambda key: (key[0], promise[key])):
            yield key[2], fitting[key]

    def _try(self, measure: _Measure, task: _Task, variant: MatMulVariant) -> None:
        """Time `variant` once more for `task`. If the device rejects it, drop its times and don't try it again."""
        if variant in task.rejected:
            return
        try:
            seconds = measure(task, variant)
        except DeviceError as error:
            _log.info("the kernel %s is left out, since the device refuses it: %s", variant, error)
            task.measured.pop(variant, None)
            task.rejected.add(variant)
        else:
            task.measured.setdefault(variant, []).append(seconds)


def _that_matter(tasks: list[_Task]) -> list[_Task]:
    """Return the tasks that take, as predicted, a relevant share of the time of all with the same token count."""
    totals: defaultdict[int, float] = defaultdict(float)
    for task in tasks:
        totals[task.tokens] += task.work_seconds
    return [task for task in tasks if task.work_seconds >= _LEAST_SHARE * totals[task.tokens]]


@dataclass(frozen=True, slots=True)
class _Measure:
    """Times a variant for matmuls of a class. It reads the weights of several layers in turns, as a step does."""

    device: Device
    memory: Memory

    def __call__(self, task: _Task, variant: MatMulVariant) -> float:
        """Return the seconds of one dispatch of the kernel `variant`: the median of a few repeats after a warm-up."""
        known = task.measured.get(task.default) or next(iter(task.measured.values()), None)
        wanted = math.ceil(_TIMED_SECONDS / max(median(known), 1e-9)) if known else 2
        count = min(_MOST_DISPATCHES, wanted)
        header = np.array([task.tokens, 1, task.tokens, 0], np.uint32)  # of struct Batch in batch.wgsl
        self.memory.upload(task.parts[0][0].batch, 0, header)
        chosen = (task.parts[number % len(task.parts)] for number in range(count))
        plan = Plan(tuple(matmul.dispatch(part, group, variant, task.tokens) for matmul, part, group in chosen))
        (first,) = time_plan(self.device, plan, 1)  # the driver may compile the kernel here
        seconds = median(time_plan(self.device, plan, _REPEATS if first < _LONG_SECONDS else 1)) / count
        if not self.device.info.is_software:
            return seconds
        groups, processors = plan.dispatches[0].x * plan.dispatches[0].y, os.cpu_count() or 1
        return seconds * -(-groups // processors) * processors / groups  # the last workgroups leave processors idle
