"""The backward pass of matmuls on the device: the gradient of their inputs, from that of their outputs.

It reads the weights that the forward pass has uploaded, and yields one dispatch for each dispatch of the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.backward.context import BackwardContext
from rnn_engine.forward.matmul import BoundMatMul, BoundPairs, LoadedPart
from rnn_engine.forward.pairs import half_names
from rnn_engine.forward.segments import MAX_SEGMENTS, Activation, SegmentPlace
from rnn_engine.forward.stages import KernelStage, Stage
from rnn_engine.forward.step import StepSize
from rnn_engine.forward.weight_formats import COLUMNS_AT_ONCE, PANEL_ROWS, round_up
from rnn_engine.gpu import BindGroup, Buffer, Dispatch, Kernel, Memory

_TARGET_WORDS: Final = 8  # of struct Target of matmul_transposed.wgsl
_SOURCE_WORDS: Final = 5  # of struct Source
_SLOPES: Final = (Activation.TANH, Activation.SIGMOID, Activation.SQUARED_RELU, Activation.SCALED)
"""The activations whose slopes matmul_transposed.wgsl knows."""
_ALL: Final = 2**31  # rows or columns
_EIGHTS: Final = 8  # of columns, for which a workgroup of pair_gradient.wgsl adds up gradients of weights


@dataclass(frozen=True, slots=True)
class _Target:
    """A vector for each token, in which matrices read their inputs and to which their gradients are written."""

    start: int  # in floats
    stride: int
    num_columns: int
    inputs_from: Activation

    @classmethod
    def of(cls, place: SegmentPlace) -> _Target:
        return cls(place.inputs_start, place.inputs_stride, place.num_columns, place.inputs_from)


@dataclass(frozen=True, slots=True)
class _Part:
    """The dispatch for one part of a matmul's matrices."""

    loaded: LoadedPart
    kernel: Kernel
    bind_group: BindGroup
    num_tiles: int  # of columns


@dataclass(frozen=True, slots=True)
class TransposedMatMul:
    """The stage that computes the gradients of a matmul's inputs: dx = W^T dy for each of its matrices.

    Matrices that read the same inputs add up. If the inputs are the outputs of an activation, as `Matrix.inputs_from`
    says, the results are the gradients of the activation's arguments.
    """

    label: str
    parts: tuple[_Part, ...]
    tokens: int  # for which a dispatch reads each weight once
    counts_rows: bool

    @classmethod
    def of(
        cls,
        forward: BoundMatMul,
        memory: Memory,
        *,
        output_gradients: Buffer,
        input_gradients: Buffer,
        inputs: Buffer | None = None,
        adds: bool = False,
        scale: float = 1.0,
    ) -> TransposedMatMul:
        """Return the stage for the matrices of the stage `forward`, whose weights it shares.

        `output_gradients` and `input_gradients` have the layouts of the buffers that `forward` writes and reads. In
        `output_gradients`, what follows a matrix's rows up to a multiple of 8 must be finite. In `input_gradients`,
        nothing but the columns of matrices is written; if `adds`, the results are added to what is there. `inputs` is
        the buffer that `forward` reads, needed if an activation made the inputs of some matrix. `scale` is the factor
        of `Activation.SCALED`.
        """
        kernels, variant = forward.kernels, forward.kernels.tuning.transposed
        constants = {
            "MAX_SEGMENTS": MAX_SEGMENTS,
            **{f"ACTIVATION_{activation.name}": int(activation) for activation in _SLOPES},
            "SCALE": scale,
            "THREADS": variant.threads,
            "TOKENS": variant.tokens,
        }
        parts = []
        written: set[_Target] = set()
        for loaded, _ in forward.parts:
            includes = {**kernels.tuning.weight_includes(loaded.format), "INPUTS": f"inputs_{variant.inputs}"}
            kernel = kernels.kernels.get("matmul_transposed", constants, includes)
            targets = _group(loaded.places)
            added = set(targets) if adds else written & set(targets)
            table = _make_table(targets, added, variant.threads, counts_rows=forward.counts_rows)
            transposed = memory.create_buffer(f"{forward.label} targets", table.nbytes)
            memory.upload(transposed, 0, table)
            bindings = {
                "batch": forward.batch,
                "matmul": transposed,
                **loaded.weights,
                "activations": output_gradients if inputs is None else inputs,
                "inputs": output_gradients,
                "gradients": input_gradients,
            }
            num_tiles = sum(-(-_eights(target) // variant.threads) for target in targets)
            parts.append(_Part(loaded, kernel, kernels.kernels.bind(kernel.source, bindings), num_tiles))
            written |= set(targets)
        return cls(f"{forward.label}, backward", tuple(parts), variant.tokens, forward.counts_rows)

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        count = step.num_rows if self.counts_rows else step.num_tokens
        tiles = -(-count // self.tokens)
        for part in self.parts:
            moved_bytes, operations = tiles * part.loaded.weight_bytes, 2 * count * part.loaded.num_weights
            yield Dispatch(self.label, part.kernel, part.bind_group, tiles, part.num_tiles, moved_bytes, operations)


@dataclass(frozen=True, slots=True)
class StagesInTurn:
    """Several stages, one after another."""

    stages: tuple[Stage, ...]

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        for stage in self.stages:
            yield from stage.dispatches(step)


def matmul_backward(
    context: BackwardContext,
    forward: BoundMatMul,
    output_gradients: Buffer,
    input_gradients: Buffer,
    inputs: Buffer | None = None,
) -> Stage:
    """Return the stage that computes the gradients of the inputs of the stage `forward`, and of its low-rank pairs.

    `inputs`, which `forward` reads, are needed if an activation has made them; the gradients are those of its argument.
    """
    memory = context.forward.memory
    transposed = TransposedMatMul.of(
        forward, memory, output_gradients=output_gradients, input_gradients=input_gradients, inputs=inputs
    )
    if forward.pairs is None:
        return transposed
    return StagesInTurn(
        (transposed, *_pairs_backward(context, forward.pairs, output_gradients, input_gradients, inputs))
    )


def _pairs_backward(
    context: BackwardContext,
    forward: BoundPairs,
    output_gradients: Buffer,
    input_gradients: Buffer,
    inputs: Buffer | None,
) -> Iterator[Stage]:
    """Yield the stages that add the gradients of pairs, and those of their inputs to `input_gradients`."""
    assert context.pairs is not None
    memory, hidden, inputs = context.forward.memory, forward.hidden, inputs or forward.inputs
    pairs = context.pairs.pairs
    scale, trained = pairs.scale, pairs.rank - pairs.num_fixed
    assert scale is not None, "pairs that are trained have one scale"
    downs, ups = zip(*map(half_names, forward.matrices), strict=True)
    d_hidden = memory.create_buffer(f"{forward.down.label} gradients", hidden.size)
    yield _weight_gradients(context, forward.up, ups, hidden, output_gradients, num_columns=trained)
    yield TransposedMatMul.of(
        forward.up, memory, output_gradients=output_gradients, input_gradients=d_hidden, inputs=hidden, scale=scale
    )
    yield _weight_gradients(context, forward.down, downs, inputs, d_hidden, num_rows=trained)
    yield TransposedMatMul.of(
        forward.down, memory, output_gradients=d_hidden, input_gradients=input_gradients, inputs=inputs, adds=True
    )


def _weight_gradients(
    context: BackwardContext,
    forward: BoundMatMul,
    names: Sequence[str],
    inputs: Buffer,
    output_gradients: Buffer,
    *,
    num_rows: int = _ALL,
    num_columns: int = _ALL,
) -> KernelStage:
    """Return the stage that adds the gradients of the weights of `forward`, which are the trained arrays `names`.

    Of each array, only the first `num_rows` and `num_columns` are trained.
    """
    assert context.pairs is not None
    ((part, _),) = forward.parts  # for the rank is bounded
    trained = context.pairs.train(names, part)
    eights = max(-(-place.num_columns // COLUMNS_AT_ONCE) for place in part.places)
    groups = -(-eights // _EIGHTS), part.num_rows // PANEL_ROWS
    kernels = context.forward.kernels
    bounds = {"TRAINED_ROWS": num_rows, "TRAINED_COLUMNS": num_columns}
    kernel = kernels.get("pair_gradient", {"MAX_SEGMENTS": MAX_SEGMENTS, "EIGHTS": _EIGHTS, **bounds})
    bindings = {
        "batch": forward.batch,
        "matmul": part.segments,
        "settings": context.pairs.settings,
        "inputs": inputs,
        "d_outputs": output_gradients,
        "gradient": trained.gradient,
    }
    bind_group = kernels.bind(kernel.source, bindings)
    return KernelStage(f"{forward.label}, gradient", kernel, bind_group, lambda _: groups)


def _group(places: Sequence[SegmentPlace]) -> dict[_Target, list[SegmentPlace]]:
    """Return the segments `places` by the vector in which they read their inputs."""
    targets: dict[_Target, list[SegmentPlace]] = {}
    for place in places:
        assert place.inputs_from is Activation.NONE or place.inputs_from in _SLOPES
        assert place.outputs_start % 4 == place.outputs_stride % 4 == 0
        targets.setdefault(_Target.of(place), []).append(place)
    return targets


def _eights(target: _Target) -> int:
    return -(-target.num_columns // COLUMNS_AT_ONCE)


def _make_table(
    targets: dict[_Target, list[SegmentPlace]], added: set[_Target], threads: int, *, counts_rows: bool
) -> NDArray[np.uint32]:
    """Return the words of `struct Transposed` of matmul_transposed.wgsl. The results of `added` targets are added."""
    words = [int(counts_rows), len(targets)]
    first_eight = first_source = 0
    for target, places in targets.items():
        words += [first_eight, target.num_columns, target.start, target.stride, int(target.inputs_from)]
        words += [int(target in added), first_source, len(places)]
        first_eight += round_up(_eights(target), threads)
        first_source += len(places)
    words += [0] * (2 + MAX_SEGMENTS * _TARGET_WORDS - len(words))
    for place in chain.from_iterable(targets.values()):
        words += [-(-place.num_rows // PANEL_ROWS), place.panel_blocks, place.weights_start]
        words += [place.outputs_start, place.outputs_stride]
    words += [0] * (2 + MAX_SEGMENTS * (_TARGET_WORDS + _SOURCE_WORDS) - len(words))
    return np.array(words, np.uint32)
