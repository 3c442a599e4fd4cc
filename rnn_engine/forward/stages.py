"""The parts of a plan. A stage is bound to its buffers when the model is loaded; for a step it gives dispatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from rnn_engine.forward.step import StepSize
from rnn_engine.gpu import BindGroup, Dispatch, Kernel


class Stage(Protocol):
    """One part of every step, such as a norm or a matmul."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the matrices that it reads."""
        ...

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]: ...


@dataclass(frozen=True, slots=True)
class KernelStage:
    """A stage of one dispatch, which reads no matrix."""

    label: str
    kernel: Kernel
    bind_group: BindGroup
    workgroups: Callable[[StepSize], tuple[int, int]]  # in x and in y
    state_bytes: int = 0  # of a run's state, which it reads and writes

    @property
    def weight_bytes(self) -> int:
        return 0

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        moved_bytes = 2 * step.num_runs * self.state_bytes
        yield Dispatch(self.label, self.kernel, self.bind_group, *self.workgroups(step), moved_bytes)
