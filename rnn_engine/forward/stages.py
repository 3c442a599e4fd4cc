"""The stages of the forward pass, bound to buffers at load, and the one that quantises inputs of matmuls to bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rnn_engine.forward.segments import Matrix
from rnn_engine.forward.step import StepSize
from rnn_engine.forward.weight_formats import COLUMNS_AT_ONCE, INPUT_BLOCK
from rnn_engine.gpu import BindGroup, Buffer, Dispatch, Kernel, Kernels, Memory, Plan


class Stage(Protocol):
    """The protocol of a part of the forward pass, such as a norm or a matmul, that yields kernel dispatches."""

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]: ...


@dataclass(frozen=True, slots=True)
class KernelStage:
    """A stage of the forward pass that runs one kernel."""

    label: str
    kernel: Kernel
    bind_group: BindGroup
    workgroups: Callable[[StepSize], tuple[int, int]]  # in x and in y
    state_bytes: int = 0  # the bytes of a run's state that it reads and writes
    waits: int = 0  # as in Dispatch

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        moved_bytes = 2 * step.num_runs * self.state_bytes
        yield Dispatch(self.label, self.kernel, self.bind_group, *self.workgroups(step), moved_bytes, waits=self.waits)


def plan_of(stages: Iterable[Stage], step: StepSize) -> Plan:
    return Plan(tuple(dispatch for stage in stages for dispatch in stage.dispatches(step)))


# Inputs of matmuls, quantised to bytes by quantise_inputs.wgsl, for matrices whose weights are bytes too.

_BLOCK_WORDS: Final = 10  # words of 4 bytes of a block: see packed_inputs.wgsl
_THREADS: Final = 64  # of a workgroup


@dataclass(frozen=True, slots=True, order=True)
class BufferSource:
    """The place in a buffer from which matrices read their inputs: first index, stride and length, in floats."""

    start: int
    stride: int
    num_columns: int

    @classmethod
    def of(cls, matrix: Matrix) -> BufferSource:
        return cls(matrix.inputs_start, matrix.inputs_stride, matrix.num_columns)

    @property
    def num_blocks(self) -> int:
        return -(-self.num_columns // INPUT_BLOCK)


@dataclass(frozen=True, slots=True)
class QuantisedInputs:
    """The layout of the quantised inputs of several matrices: for each token, the blocks of all distinct inputs."""

    sources: tuple[BufferSource, ...]

    @classmethod
    def of(cls, matrices: Sequence[Matrix]) -> QuantisedInputs:
        return cls(tuple(dict.fromkeys(map(BufferSource.of, matrices))))

    @property
    def num_blocks(self) -> int:
        return sum(source.num_blocks for source in self.sources)

    @property
    def token_bytes(self) -> int:
        return 4 * _BLOCK_WORDS * self.num_blocks

    def read_by(self, matrix: Matrix) -> Matrix:
        """Return a copy of `matrix` that reads quantised inputs. Its input offset and stride count 4-byte words."""
        before = self.sources[: self.sources.index(BufferSource.of(matrix))]
        start = _BLOCK_WORDS * sum(source.num_blocks for source in before)
        return replace(matrix, inputs_start=start, inputs_stride=_BLOCK_WORDS * self.num_blocks)

    def stage(
        self, kernels: Kernels, memory: Memory, *, inputs: Buffer, packed: Buffer, counts_rows: bool
    ) -> KernelStage:
        """Return the stage that quantises the floats in `inputs` to bytes and writes them to `packed` in blocks."""
        kernel = kernels.get("quantise_inputs", {"THREADS": _THREADS})
        table = self._table(counts_rows=counts_rows)
        sources = memory.create_buffer("sources of inputs", table.nbytes)
        memory.upload(sources, 0, table)
        bindings = {"sources": sources, "inputs": inputs, "packed": packed}
        width = -(-self.num_blocks // _THREADS)
        return KernelStage(
            "quantise inputs",
            kernel,
            kernels.bind(kernel.source, bindings),
            lambda step: (width, step.num_rows if counts_rows else step.num_tokens),
        )

    def _table(self, *, counts_rows: bool) -> NDArray[np.uint32]:
        """Return the words of `struct Sources` of quantise_inputs.wgsl: the places of all inputs to quantise."""
        words, first_block = [int(counts_rows), len(self.sources), self.num_blocks, 0], 0
        for source in self.sources:
            words += [source.start, source.stride, -(-source.num_columns // COLUMNS_AT_ONCE), first_block]
            first_block += source.num_blocks
        return np.array(words, np.uint32)
