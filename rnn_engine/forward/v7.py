"""RWKV-7 as dispatches: its weights on a device, the buffers between its kernels, and the plan of a step.

Eight dispatches a layer:
norm and token shift into six mixes · r, k, v and the adapters' first halves · the adapters' second halves ·
the recurrence of every head · output, added to the residual · norm and token shift · key, squared relu · value, added.
The maths is that of rnn_engine/reference/v7.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rnn_engine.errors import DeviceError
from rnn_engine.forward.packing import padded
from rnn_engine.forward.products import Activation, Matrix, Product, ProductBuffers, ProductKernels
from rnn_engine.forward.scratch import Scratch, StepLimits
from rnn_engine.forward.state import StateLayout
from rnn_engine.forward.tuning import Tuning
from rnn_engine.gpu import BindGroup, Buffer, Device, Dispatch, Kernel, Plan
from rnn_engine.types import Model

Progress = Callable[[str, int, int], None]
"""Called while loading with what is being done, how many parts are done, and how many there are."""

_HEAD_SIZES = (16, 32, 64, 128)
_MIXES = ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g")
_VECTORS = (
    *(f"att.{mix}" for mix in _MIXES),
    "ffn.x_k",
    *("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias"),
    *("att.w0", "att.a0", "att.v0"),
    *("att.k_k", "att.k_a", "att.r_k", "att.ln_x.weight", "att.ln_x.bias"),
)  # all of size D, packed in this order


@dataclass(frozen=True, slots=True)
class _Layer:
    att_norm: tuple[Kernel, BindGroup]
    projections: Product
    gates: Product
    recurrence: tuple[Kernel, BindGroup]
    output: Product
    ffn_norm: tuple[Kernel, BindGroup]
    key: Product
    value: Product


class ForwardV7:
    """The model on its device: `plan` says what a step dispatches."""

    def __init__(
        self,
        model: Model,
        device: Device,
        kernels: ProductKernels,
        limits: StepLimits,
        progress: Progress,
    ) -> None:
        shape = model.shape
        if shape.head_size not in _HEAD_SIZES:
            raise DeviceError(f"head size {shape.head_size} is not served on a GPU; expected one of {_HEAD_SIZES}")
        self.shape = shape
        self.state_layout = StateLayout(shape)
        self.scratch = Scratch(shape, limits, device)
        self.states = [
            device.create_buffer(f"states of layer {layer}", 4 * limits.num_slots * self.state_layout.stride)
            for layer in range(shape.num_layers)
        ]
        self._model = model
        self._device = device
        self._products = kernels
        self._kernels = kernels.kernels
        self._tuning: Tuning = kernels.tuning
        self._limits = limits
        self._layers: list[_Layer] = []
        for layer in range(shape.num_layers):
            progress("loading layers", layer, shape.num_layers + 1)
            self._layers.append(self._load_layer(layer))
        progress("loading the head", shape.num_layers, shape.num_layers + 1)
        self._load_head()
        progress("loaded", shape.num_layers + 1, shape.num_layers + 1)

    @property
    def weight_bytes(self) -> int:
        """Bytes of matrices that a step reads, the head's included."""
        return self._head.weight_bytes + sum(
            product.weight_bytes
            for layer in self._layers
            for product in (layer.projections, layer.gates, layer.output, layer.key, layer.value)
        )

    def plan(self, num_tokens: int, num_runs: int, num_rows: int) -> Plan:
        """The dispatches of a step; logits and read-outs where `num_rows` is not 0."""
        return Plan(tuple(self._dispatches(num_tokens, num_runs, num_rows)))

    def _dispatches(self, num_tokens: int, num_runs: int, num_rows: int) -> Iterator[Dispatch]:
        for index, layer in enumerate(self._layers):
            name = f"layer {index}"
            yield Dispatch(f"{name} att norm", *layer.att_norm, num_tokens)
            yield from layer.projections.dispatches(num_tokens)
            yield from layer.gates.dispatches(num_tokens)
            yield Dispatch(f"{name} recurrence", *layer.recurrence, self.shape.num_heads, num_runs)
            yield from layer.output.dispatches(num_tokens)
            yield Dispatch(f"{name} ffn norm", *layer.ffn_norm, num_tokens)
            yield from layer.key.dispatches(num_tokens)
            yield from layer.value.dispatches(num_tokens)
        if num_rows:
            yield Dispatch("norm rows", *self._norm_rows, num_rows)
            yield from self._head.dispatches(num_rows)
            yield Dispatch("candidates", *self._candidates, num_rows)

    def _load_layer(self, layer: int) -> _Layer:
        scratch, tokens, width = self.scratch, self._limits.max_tokens, self.shape.width
        vectors, offsets = self._load_vectors(layer)

        def matrix_product(label: str, matrices: list[Matrix], inputs: Buffer, outputs: Buffer) -> Product:
            buffers = ProductBuffers(scratch.batch, vectors, inputs, outputs)
            return Product(f"layer {layer} {label}", matrices, buffers, self._products, self._device)

        def one_matrix(name: str, columns: int, activation: Activation, rows: int = width) -> list[Matrix]:
            weights = self._model.tensor(f"blocks.{layer}.{name}.weight")
            return [Matrix(weights, 0, padded(columns), 0, padded(rows), activation)]

        projections = [
            Matrix(
                self._model.tensor(f"blocks.{layer}.att.{name}.weight"),
                inputs_start=_MIXES.index(mix) * tokens * width,
                inputs_stride=width,
                outputs_start=plane * tokens * width,
                outputs_stride=width,
            )
            for plane, (name, mix) in enumerate((("receptance", "x_r"), ("key", "x_k"), ("value", "x_v")))
        ]
        gates: list[Matrix] = []
        for plane, (name, first, second) in enumerate(
            (
                ("w", Activation.TANH, Activation.DECAY),
                ("a", Activation.NONE, Activation.BIASED_SIGMOID),
                ("g", Activation.SIGMOID, Activation.NONE),
                ("v", Activation.NONE, Activation.BIASED_SIGMOID),
            )
        ):
            if name == "v" and layer == 0:
                continue
            start, stride = scratch.hidden_starts[name], scratch.hidden_strides[name]
            down = self._model.tensor(f"blocks.{layer}.att.{name}1")
            up = self._model.tensor(f"blocks.{layer}.att.{name}2")
            mix = _MIXES.index(f"x_{name}") * tokens * width
            bias = offsets.get(f"att.{name}0", 0)
            projections.append(Matrix(down.T, mix, width, start, stride, first))
            gates.append(Matrix(up.T, start, stride, plane * tokens * width, width, second, bias))
        return _Layer(
            att_norm=self._norm_shift(
                "ln1", "att.x_r", len(_MIXES), self.state_layout.att_shift, layer, vectors, offsets
            ),
            projections=matrix_product("projections", projections, scratch.mixes, scratch.projected),
            gates=matrix_product("gates", gates, scratch.projected, scratch.gates),
            recurrence=self._recurrence(layer, vectors, offsets),
            output=matrix_product(
                "output", one_matrix("att.output", width, Activation.RESIDUAL), scratch.mixed, scratch.x
            ),
            ffn_norm=self._norm_shift("ln2", "ffn.x_k", 1, self.state_layout.ffn_shift, layer, vectors, offsets),
            key=matrix_product(
                "key",
                one_matrix("ffn.key", width, Activation.SQUARED_RELU, self.shape.ffn_width),
                scratch.mixes,
                scratch.ffn_hidden,
            ),
            value=matrix_product(
                "value",
                one_matrix("ffn.value", self.shape.ffn_width, Activation.RESIDUAL),
                scratch.ffn_hidden,
                scratch.x,
            ),
        )

    def _load_vectors(self, layer: int) -> tuple[Buffer, dict[str, int]]:
        """A layer's vectors in one buffer, and where in it each starts."""
        names = [name for name in _VECTORS if self._model.has(f"blocks.{layer}.{name}")]
        width = self.shape.width
        packed = np.concatenate(
            [self._model.tensor(f"blocks.{layer}.{name}").astype(np.float32).reshape(width) for name in names]
        )
        buffer = self._device.create_buffer(f"layer {layer} vectors", packed.nbytes)
        self._device.upload(buffer, 0, packed)
        return buffer, {name: index * width for index, name in enumerate(names)}

    def _norm_shift(
        self,
        norm: str,
        mix: str,
        num_mixes: int,
        shift: int,
        layer: int,
        vectors: Buffer,
        offsets: dict[str, int],
    ) -> tuple[Kernel, BindGroup]:
        kernel = self._kernels.get(
            "norm_shift",
            {
                **self._limits.constants(),
                "THREADS": self._tuning.norm_threads,
                "WIDTH": self.shape.width,
                "STATE_STRIDE": self.state_layout.stride,
                "SHIFT_OFFSET": shift,
                "MIXES": num_mixes,
                "MIX": offsets[mix],
                "NORM_WEIGHT": offsets[f"{norm}.weight"],
                "NORM_BIAS": offsets[f"{norm}.bias"],
            },
        )
        buffers = {
            "batch": self.scratch.batch,
            "x": self.scratch.x,
            "vectors": vectors,
            "state": self.states[layer],
            "mixes": self.scratch.mixes,
        }
        return kernel, self._kernels.bind(kernel.source, buffers)

    def _recurrence(self, layer: int, vectors: Buffer, offsets: dict[str, int]) -> tuple[Kernel, BindGroup]:
        kernel = self._kernels.get(
            "wkv7",
            {
                **self._limits.constants(),
                "WIDTH": self.shape.width,
                "HEAD_SIZE": self.shape.head_size,
                "STATE_STRIDE": self.state_layout.stride,
                "WKV_OFFSET": self.state_layout.wkv,
                "IS_FIRST_LAYER": layer == 0,
                "K_K": offsets["att.k_k"],
                "K_A": offsets["att.k_a"],
                "R_K": offsets["att.r_k"],
                "GROUP_NORM_WEIGHT": offsets["att.ln_x.weight"],
                "GROUP_NORM_BIAS": offsets["att.ln_x.bias"],
            },
            {"VECTORS": "vectors_broadcast" if self._tuning.broadcast else "vectors_direct"},
        )
        buffers = {
            "batch": self.scratch.batch,
            "vectors": vectors,
            "projected": self.scratch.projected,
            "gates": self.scratch.gates,
            "v_first": self.scratch.v_first,
            "state": self.states[layer],
            "mixed": self.scratch.mixed,
        }
        return kernel, self._kernels.bind(kernel.source, buffers)

    def _load_head(self) -> None:
        scratch, shape = self.scratch, self.shape
        vectors = np.concatenate(
            [self._model.tensor(f"ln_out.{part}").astype(np.float32) for part in ("weight", "bias")]
        )
        vectors_buffer = self._device.create_buffer("ln_out", vectors.nbytes)
        self._device.upload(vectors_buffer, 0, vectors)
        norm = self._kernels.get(
            "norm_rows",
            {**self._limits.constants(), "THREADS": self._tuning.norm_threads, "WIDTH": shape.width},
        )
        self._norm_rows = (
            norm,
            self._kernels.bind(
                norm.source,
                {"batch": scratch.batch, "x": scratch.x, "vectors": vectors_buffer, "normed": scratch.normed},
            ),
        )
        head = Matrix(self._model.tensor("head.weight"), 0, shape.width, 0, shape.vocab_size)
        self._head = Product(
            "head",
            [head],
            ProductBuffers(scratch.batch, vectors_buffer, scratch.normed, scratch.logits),
            self._products,
            self._device,
            counts_rows=True,
        )
        candidates = self._kernels.get(
            "candidates",
            {
                **self._limits.constants(),
                "THREADS": self._tuning.candidate_threads,
                "VOCAB": shape.vocab_size,
                "K": self._limits.num_candidates,
            },
        )
        self._candidates = (
            candidates,
            self._kernels.bind(
                candidates.source, {"batch": scratch.batch, "logits": scratch.logits, "readout": scratch.readout}
            ),
        )
