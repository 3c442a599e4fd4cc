"""Functions that divide the matrices of a matmul into parts, one for each dispatch, and upload them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Any

from numpy.typing import NDArray

from rnn_engine.forward.weight_formats import COLUMNS_AT_ONCE, PANEL_ROWS, WeightFormat, round_up, row_blocks
from rnn_engine.gpu import Buffer, Memory
from rnn_engine.quantised import Blocks
from rnn_engine.quantised.rows import PIECE_WEIGHTS, map_rows, read_rows
from rnn_engine.quantised.rows import Matrix as HostMatrix

ROW_ALIGNMENT = 64  # every segment starts at a multiple of it; no workgroup takes more rows
MAX_SEGMENTS = 8  # of a part
SEGMENT_WORDS = 12  # of struct Segment


class Activation(IntEnum):
    """The function that a matmul applies to each output before it is written. segments.wgsl has the same numbers."""

    NONE = 0
    TANH = 1
    SIGMOID = 2
    SQUARED_RELU = 3
    BIASED_SIGMOID = 4
    DECAY = 5
    RESIDUAL = 6  # adds the sum to what the output holds
    DOUBLE_EXP_DECAY = 7
    SCALED_RESIDUAL = 8  # adds the sum times the operand
    SHIFTED_MIX = 9  # as SCALED_RESIDUAL, with the operand in the buffer of the outputs
    BIASED_SCALE = 10  # multiplies what the output holds by the sum plus the operand
    BIASED = 11
    SILU = 12
    PRODUCT = 13  # multiplies what the output holds by the sum
    SWIGLU = 14  # of rows in pairs: silu of an even row's sum times the next row's, which is one output
    SCALED = 15  # the sum times the operand
    ADDED_SQUARED_RELU = 16  # of the sum plus what the output holds, like the next
    ADDED_SIGMOID = 17
    ADDED_SILU = 18


@dataclass(frozen=True, slots=True)
class SegmentWeights:
    """The weights of one matrix on the host, and the format in which the device stores them."""

    values: HostMatrix  # [R, C], any float type, or in blocks
    format: WeightFormat
    name: str = ""  # in the model, if it has one

    @property
    def numbers(self) -> NDArray[Any]:
        """The weights of the matrix as an array of floats."""
        values = read_rows(self.values)
        return values.numbers() if isinstance(values, Blocks) else values

    @property
    def row_blocks(self) -> int:
        return row_blocks(self.format, self.values.shape[1])


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix of a matmul, its activation, and the places (in floats) of its inputs, outputs and operands."""

    weights: SegmentWeights
    inputs_start: int
    inputs_stride: int  # a multiple of 4, no less than C rounded up to 8
    outputs_start: int
    outputs_stride: int
    activation: Activation = Activation.NONE
    operand_start: int = 0  # of what the activation combines a sum with: a bias, or a factor of each token
    operand_stride: int = 0  # 0 if all tokens share the operands
    inputs_from: Activation = Activation.NONE  # what the inputs are the outputs of: a backward pass differentiates it

    @property
    def num_columns(self) -> int:
        return int(self.weights.values.shape[1])


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows `start` to `end` of a matrix that one part of a matmul stores, from its row `first_row` on."""

    matrix: Matrix
    start: int
    end: int
    first_row: int
    weights_start: int  # the number of its first block in the part

    @property
    def rows(self) -> HostMatrix:
        """The weights [rows, C] of the segment, a range of a matrix's rows."""
        return self.matrix.weights.values[self.start : self.end]

    @property
    def row_blocks(self) -> int:
        return self.matrix.weights.row_blocks

    @property
    def place(self) -> SegmentPlace:
        """The places of the segment's weights, inputs, outputs and operands."""
        matrix = self.matrix
        return SegmentPlace(
            self.first_row,
            self.end - self.start,
            matrix.num_columns,
            PANEL_ROWS * self.row_blocks,
            self.weights_start,
            matrix.inputs_start,
            matrix.inputs_stride,
            matrix.outputs_start + self.start // (2 if matrix.activation is Activation.SWIGLU else 1),
            matrix.outputs_stride,
            matrix.operand_start + self.start,
            matrix.operand_stride,
            matrix.activation,
            matrix.inputs_from,
        )


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """What a kernel must know of a segment, without its weights on the host."""

    first_row: int
    num_rows: int
    num_columns: int
    panel_blocks: int
    weights_start: int
    inputs_start: int
    inputs_stride: int
    outputs_start: int  # of the segment's first row
    outputs_stride: int
    operand_start: int
    operand_stride: int
    activation: Activation
    inputs_from: Activation

    def pack(self) -> list[int]:
        """Return the place as the 4-byte words of `struct Segment` of segments.wgsl, which has the fields' order."""
        first_row, num_rows, num_columns, *rest, _ = astuple(self)
        return [first_row, num_rows, -(-num_columns // COLUMNS_AT_ONCE), *map(int, rest)]


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """The segments (row ranges of matrices) that one dispatch multiplies, all of one weight format."""

    format: WeightFormat
    segments: tuple[Segment, ...]

    @property
    def num_rows(self) -> int:
        last = self.segments[-1]
        return last.first_row + round_up(last.end - last.start, ROW_ALIGNMENT)

    @property
    def num_weights(self) -> int:
        return sum((s.end - s.start) * s.matrix.num_columns for s in self.segments)

    @property
    def num_blocks(self) -> int:
        last = self.segments[-1]
        return last.weights_start + round_up(last.end - last.start, ROW_ALIGNMENT) * last.row_blocks


def split_matrices(matrices: Sequence[Matrix], max_bytes: int) -> Iterator[SegmentPart]:
    """Yield `matrices` in parts of rows of one format, each of at most `max_bytes` in each of its buffers."""
    formats = {matrix.weights.format.name: matrix.weights.format for matrix in matrices}
    for name, weights in formats.items():
        max_blocks = max_bytes // max(weights.block_bytes.values())
        alike = [matrix for matrix in matrices if matrix.weights.format.name == name]
        yield from (SegmentPart(weights, segments) for segments in _split_rows(alike, max_blocks))


def _split_rows(matrices: Sequence[Matrix], max_blocks: int) -> Iterator[tuple[Segment, ...]]:
    """Divide `matrices` by rows into parts of at most `max_blocks` blocks, and yield the segments of each part."""
    part: list[Segment] = []
    first_row = blocks = 0
    for matrix in matrices:
        num_rows = len(matrix.weights.values)
        start = 0
        while start < num_rows:
            room = (max_blocks - blocks) // matrix.weights.row_blocks // ROW_ALIGNMENT * ROW_ALIGNMENT
            if part and (room == 0 or len(part) == MAX_SEGMENTS):
                yield tuple(part)
                part, first_row, blocks = [], 0, 0
                continue
            end = min(num_rows, start + room)
            part.append(Segment(matrix, start, end, first_row, blocks))
            taken = round_up(end - start, ROW_ALIGNMENT)
            first_row += taken
            blocks += taken * matrix.weights.row_blocks
            start = end
    yield tuple(part)


_STAGED_BYTES = 1 << 20  # of uploads for which a load does not wait: what is staged leaves gaps between buffers


def create_weight_buffers(memory: Memory, label: str, weights: WeightFormat, num_blocks: int) -> dict[str, Buffer]:
    """Allocate buffers for `num_blocks` blocks of the format `weights`; return them by their variables in WGSL."""
    return {
        variable: memory.create_buffer(f"{label} {variable}", num_blocks * num_bytes, use="weights")
        for variable, num_bytes in weights.block_bytes.items()
    }


def upload_rows(
    memory: Memory, buffers: Mapping[str, Buffer], weights: WeightFormat, rows: HostMatrix, first_block: int
) -> None:
    """Convert rows [R, C] to the format `weights` on all cores, and upload them, from block `first_block` on."""
    if memory.only_counts:
        return
    blocks = row_blocks(weights, rows.shape[1])
    step = max(1, PIECE_WEIGHTS // rows.shape[1] // PANEL_ROWS) * PANEL_ROWS
    for number, packed in enumerate(map_rows(weights.pack, rows, step)):
        block = first_block + number * step * blocks
        for variable, array in packed.items():
            memory.upload(buffers[variable], block * weights.block_bytes[variable], array)
        memory.finish_uploads(_STAGED_BYTES)
