"""Inputs of matmuls as bytes, for matrices whose weights are bytes too: see quantise_inputs.wgsl."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.forward.packing import COLUMNS_AT_ONCE, INPUT_BLOCK
from rnn_engine.forward.segments import Matrix
from rnn_engine.forward.stages import KernelStage
from rnn_engine.forward.step import StepLimits
from rnn_engine.gpu import Buffer, Kernels, Memory

_BLOCK_WORDS: Final = 10  # of 4 bytes: see packed_inputs.wgsl
_THREADS: Final = 64  # of a workgroup


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """Inputs of one or more matrices, where they lie as floats. Counts floats."""

    start: int
    stride: int
    num_columns: int

    @classmethod
    def of(cls, matrix: Matrix) -> Source:
        return cls(matrix.inputs_start, matrix.inputs_stride, matrix.num_columns)

    @property
    def num_blocks(self) -> int:
        return -(-self.num_columns // INPUT_BLOCK)


@dataclass(frozen=True, slots=True)
class QuantisedInputs:
    """The inputs of some matrices as blocks: those of a token side by side, token after token."""

    sources: tuple[Source, ...]

    @classmethod
    def of(cls, matrices: Sequence[Matrix]) -> QuantisedInputs:
        return cls(tuple(dict.fromkeys(map(Source.of, matrices))))

    @property
    def num_blocks(self) -> int:
        """Blocks of a token."""
        return sum(source.num_blocks for source in self.sources)

    @property
    def token_bytes(self) -> int:
        return 4 * _BLOCK_WORDS * self.num_blocks

    def read_by(self, matrix: Matrix) -> Matrix:
        """Return `matrix` with its inputs where they lie as blocks."""
        before = self.sources[: self.sources.index(Source.of(matrix))]
        start = _BLOCK_WORDS * sum(source.num_blocks for source in before)
        return replace(matrix, inputs_start=start, inputs_stride=_BLOCK_WORDS * self.num_blocks)

    def stage(
        self,
        kernels: Kernels,
        memory: Memory,
        limits: StepLimits,
        *,
        batch: Buffer,
        inputs: Buffer,
        packed: Buffer,
        counts_rows: bool,
    ) -> KernelStage:
        """Return the stage that makes blocks in `packed` of the floats in `inputs`."""
        kernel = kernels.get("quantise_inputs", {**limits.constants(), "THREADS": _THREADS})
        table = self._table(counts_rows=counts_rows)
        sources = memory.create_buffer("sources of inputs", table.nbytes)
        memory.upload(sources, 0, table)
        bindings = {"batch": batch, "sources": sources, "inputs": inputs, "packed": packed}
        width = -(-self.num_blocks // _THREADS)
        return KernelStage(
            "quantise inputs",
            kernel,
            kernels.bind(kernel.source, bindings),
            lambda step: (width, step.num_rows if counts_rows else step.num_tokens),
        )

    def _table(self, *, counts_rows: bool) -> NDArray[np.uint32]:
        """Return struct Sources of quantise_inputs.wgsl."""
        words, first_block = [int(counts_rows), len(self.sources), self.num_blocks, 0], 0
        for source in self.sources:
            words += [source.start, source.stride, -(-source.num_columns // COLUMNS_AT_ONCE), first_block]
            first_block += source.num_blocks
        return np.array(words, np.uint32)
