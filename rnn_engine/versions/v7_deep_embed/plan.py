"""The forward pass of RWKV-7 with DeepEmbed on a device: the buffers and the stages of its layers.

A layer has ten dispatches if its table fits one binding. A step has one more, which keeps the embedding.
A layer begins as RWKV-7's. The second token shift has one more mix, the token itself. After it come:

1. Key, squared relu, together with the inner vector of the scale and the embedding's part of its matrix.
2. The inner vector times the matrix of each token.
3. The scale, by which the key is multiplied.
4. Value, added to the residual.

The maths is that of reference.py beside this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from rnn_engine.forward.context import BuildContext, CarriedRows, NormShift
from rnn_engine.forward.forward_pass import table_stages
from rnn_engine.forward.segments import Activation, Matrix
from rnn_engine.forward.stages import KernelStage, Stage
from rnn_engine.forward.weight_formats import round_up
from rnn_engine.versions.shared.plan import shape_for_gpu
from rnn_engine.versions.v7.plan import Layer, Scratch
from rnn_engine.versions.v7_deep_embed.layout import MATRIX_SIZE, SIDE, ShapeV7DeepEmbed

_MIX, _ITSELF, _EMBEDDED = 0, 1, 6  # planes of `mixes`: two for the channel mix, and the first layer's input
_NUM_PLANES: Final = 7


def load_layers(context: BuildContext) -> Iterator[tuple[Stage, ...]]:
    """Load the layers one by one, and yield their stages. Raises DeviceError if the heads are too large."""
    shape = shape_for_gpu(context.model, ShapeV7DeepEmbed)
    scratch = _DeepEmbedScratch(context, shape)
    keep = _keep_embedding(context, scratch)
    for layer in range(shape.num_layers):
        builder = _Layer(context, scratch, shape, layer)
        yield (keep, *builder.stages()) if builder.is_first else builder.stages()


class _DeepEmbedScratch(Scratch):
    """The device buffers for activations within a layer of RWKV-7 with DeepEmbed. All layers share them."""

    def __init__(self, context: BuildContext, shape: ShapeV7DeepEmbed) -> None:
        tokens = context.limits.max_tokens
        self.key_stride = round_up(shape.ffn_width, 8)
        self.inner_start = tokens * self.key_stride
        self.matrix_start = self.inner_start + tokens * SIDE
        super().__init__(context, shape, num_mixes=_NUM_PLANES, ffn_floats=self.matrix_start + tokens * MATRIX_SIZE)
        self.scaled = context.memory.create_buffer("scaled inner vectors", 4 * tokens * SIDE)  # [T, S]
        context.carried.append(CarriedRows(self.mixes, _EMBEDDED * tokens * shape.width))


def _keep_embedding(context: BuildContext, scratch: _DeepEmbedScratch) -> KernelStage:
    width = context.model.shape.width
    kernel = context.kernels.get(
        "keep_embedding",
        {
            "THREADS": context.tuning.norm_threads,
            "WIDTH": width,
            "START": _EMBEDDED * context.limits.max_tokens * width,
        },
    )
    bind_group = context.kernels.bind(kernel.source, {"x": context.buffers.x, "kept": scratch.mixes})
    return KernelStage("keep the embedding", kernel, bind_group, lambda step: (step.num_tokens, 1))


class _Layer(Layer):
    """A helper that builds the stages of one layer of RWKV-7 with DeepEmbed while a model is loaded onto a device."""

    def __init__(self, context: BuildContext, scratch: _DeepEmbedScratch, shape: ShapeV7DeepEmbed, layer: int) -> None:
        lookup = context.model.tensor
        added = {
            "mix of the key": lookup(f"blocks.{layer}.ffn.x_k"),
            "mix of nothing": np.zeros(shape.width, np.float32),  # which leaves the token itself
            "ffn.s0": lookup(f"blocks.{layer}.ffn.s0"),
        }
        super().__init__(context, scratch, shape, layer, added)
        self._deep = scratch

    def stages(self) -> tuple[Stage, ...]:
        return (*self.time_mix_stages(), *self._embedded_channel_mix_stages())

    def _embedded_channel_mix_stages(self) -> tuple[Stage, ...]:
        deep, hidden, x = self._deep, self._deep.ffn_hidden, self.context.buffers.x
        mixes = ("mix of the key", "mix of nothing")
        value = Matrix(self.weights("ffn.value.weight"), 0, deep.key_stride, 0, self.width, Activation.RESIDUAL)
        return (
            self.norm_shift("ffn norm", NormShift("ln2", mixes, "ffn_shift"), deep.mixes),
            self.matmul("key", self._key(), deep.mixes, hidden),
            *table_stages(
                self.context,
                self.label("deep embedding"),
                f"blocks.{self.layer}.ffn.s_emb.weight",
                "deep_embed",
                {"SIDE": SIDE, "INNER": deep.inner_start, "MIX": deep.matrix_start},
                {"hidden": hidden, "scaled": deep.scaled},
            ),
            self.matmul("scale", [self._scale()], deep.scaled, hidden),
            self.matmul("value", [value], hidden, x),
        )

    def _key(self) -> list[Matrix]:
        """Return the matrices that the channel mix of a layer with DeepEmbed multiplies first.

        They compute the key, the inner vector of the scale, and the part of each token's matrix that depends on its
        embedding.
        """
        deep, width = self._deep, self.width
        inner, embedded = self.weights("ffn.s1", transposed=True), self.weights("ffn.s_emb_x.weight")  # [S, D], [E, D]
        return [
            Matrix(self.weights("ffn.key.weight"), _MIX, width, 0, deep.key_stride, Activation.SQUARED_RELU),
            Matrix(inner, _ITSELF * self.plane, width, deep.inner_start, SIDE),
            Matrix(embedded, _EMBEDDED * self.plane, width, deep.matrix_start, MATRIX_SIZE),
        ]

    def _scale(self) -> Matrix:
        return Matrix(
            self.weights("ffn.s2", transposed=True),  # [F, S]
            inputs_start=0,
            inputs_stride=SIDE,
            outputs_start=0,
            outputs_stride=self._deep.key_stride,
            activation=Activation.BIASED_SCALE,
            operand_start=self.vectors.starts["ffn.s0"],
        )
