"""A made-up version to show what a version is: each of its layers is only a channel mix.

Its state has a token shift, and a vector that no step changes. The embedding and the head have names of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from safetensors.numpy import save_file

from rnn_engine.forward.context import BuildContext, NormShift, PackedVectors, norm_shift_stage
from rnn_engine.forward.segments import Activation, Matrix
from rnn_engine.forward.stages import Stage
from rnn_engine.model.layout import Layout, Sizes, TensorSpec
from rnn_engine.reference import Array, PackedRuns, Weights, embed, layer_norm
from rnn_engine.types import FieldKind, MatrixPlace, ModelShape, StateField, TensorNames
from rnn_engine.versions.table import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyShape(ModelShape):
    """The sizes of a toy model."""

    version: str = field(default="toy", init=False)
    inner: int  # F

    @property
    def tensor_names(self) -> TensorNames:
        return TensorNames("tokens.table", "tokens.norm", "answers.norm", "answers.matrix", "blocks.")

    def place_of(self, name: str) -> MatrixPlace:
        match = re.fullmatch(r"blocks\.([0-9]+)\.toy\..*", name)
        return MatrixPlace("emb" if "tokens" in name else "head", None) if match is None else _in_layer(match)

    @property
    def layer_weights(self) -> int:
        return 2 * self.width * self.inner

    @property
    def state_fields(self) -> tuple[StateField, ...]:
        return (
            StateField("memory", FieldKind.VECTOR, (3,), fill=-2.0),
            StateField("shift", FieldKind.SHIFT, (self.width,)),
        )

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"num_layers": self.num_layers, "width": self.width, "vocab_size": self.vocab_size}


def _in_layer(match: re.Match[str]) -> MatrixPlace:
    return MatrixPlace("ffn", int(match[1]))


TOY_SHAPE: Final = ToyShape(num_layers=2, width=16, inner=24, vocab_size=12)


def list_tensors(num_layers: int) -> tuple[TensorSpec, ...]:
    norms = ["tokens.norm", "answers.norm", *(f"blocks.{layer}.ln1" for layer in range(num_layers))]
    blocks = [f"blocks.{layer}.toy" for layer in range(num_layers)]
    return (
        TensorSpec("tokens.table", ("V", "D")),
        TensorSpec("answers.matrix", ("V", "D")),
        *(TensorSpec(f"{norm}.{part}", ("D",)) for norm in norms for part in ("weight", "bias")),
        *(TensorSpec(f"{block}.mix", ("D",)) for block in blocks),
        *(TensorSpec(f"{block}.up", ("F", "D")) for block in blocks),
        *(TensorSpec(f"{block}.down", ("D", "F")) for block in blocks),
    )


def make_shape(num_layers: int, sizes: Sizes) -> ToyShape:
    return ToyShape(num_layers=num_layers, width=sizes["D"], inner=sizes["F"], vocab_size=sizes["V"])


def run_layers(
    weights: Weights, ids: Array, lengths: Sequence[int] | PackedRuns, states: Mapping[str, Array]
) -> tuple[Array, dict[str, list[Array]]]:
    x = embed(weights, ids)
    runs = PackedRuns.of(lengths)
    after: dict[str, list[Array]] = {"shift": []}
    for layer in range(weights.shape.num_layers):
        block = weights.block(layer)
        normed = layer_norm(x, block, "ln1")
        mixed = normed + (runs.shift(normed, states["shift"][:, layer]) - normed) * block("toy.mix")
        x = x + block.matmul(np.square(np.maximum(block.matmul(mixed, "toy.up"), 0)), "toy.down")
        after["shift"].append(runs.last(normed))
    return x, after


def load_layers(context: BuildContext) -> Iterator[tuple[Stage, ...]]:
    shape, tokens = context.model.shape, context.limits.max_tokens
    assert isinstance(shape, ToyShape)
    mixed = context.memory.create_buffer("mixed", 4 * tokens * shape.width)
    hidden = context.memory.create_buffer("hidden", 4 * tokens * shape.inner)
    for layer in range(shape.num_layers):
        block = f"blocks.{layer}"
        names = ("ln1.weight", "ln1.bias", "toy.mix")
        vectors = PackedVectors.load(context, f"{block} vectors", f"{block}.", names)
        up = Matrix(context.weights(f"{block}.toy.up"), 0, shape.width, 0, shape.inner, Activation.SQUARED_RELU)
        down = Matrix(context.weights(f"{block}.toy.down"), 0, shape.inner, 0, shape.width, Activation.RESIDUAL)
        yield (
            norm_shift_stage(context, layer, f"{block} norm", vectors, NormShift("ln1", ("toy.mix",), "shift"), mixed),
            context.matmul_stage(f"{block} up", [up], vectors.buffer, mixed, hidden),
            context.matmul_stage(f"{block} down", [down], vectors.buffer, hidden, context.buffers.x),
        )


TOY: Final = Version(
    name="toy",
    title="RWKV-toy",
    pattern=re.compile(r"blocks\.\d+\.toy\.mix"),
    layout=Layout(list_tensors, make_shape),
    run_layers=run_layers,
    load_layers=load_layers,
)


def save_toy(path: Path) -> Path:
    """Write a toy model with random weights and the sizes of TOY_SHAPE."""
    shape, generator = TOY_SHAPE, np.random.default_rng(3)
    sizes = {"D": shape.width, "F": shape.inner, "V": shape.vocab_size}
    tensors = {
        spec.name: generator.normal(size=[sizes[letter] for letter in spec.dims]).astype(np.float16)
        for spec in list_tensors(shape.num_layers)
    }
    save_file(tensors, path)
    return path
