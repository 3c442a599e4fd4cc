"""The text of every shader that the engine may run: all versions, weight formats, tunings and kinds of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from types import MappingProxyType
from typing import Any

from rnn_engine.backward import Optimizer
from rnn_engine.backward.gpu_trainer import GpuTrainer
from rnn_engine.forward import GpuRunner
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.step import StepLimits
from rnn_engine.forward.tuning import Tuning, tuning_for
from rnn_engine.forward.variants import MatMulVariant, StreamVariant, TiledVariant
from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.forward.weight_formats import STORED_FORMATS, WEIGHT_FORMATS
from rnn_engine.gpu import DeviceInfo, SizingDevice
from rnn_engine.loading.settings import LoraSettings
from rnn_engine.loading.trainer import find_pairs
from rnn_engine.model.model_file import UnreadModel
from rnn_engine.quantised import BLOCK_FORMATS, KEPT_FORMATS
from rnn_engine.tensor_files.source import TensorInfo
from rnn_engine.types import ModelShape
from rnn_engine.versions.table import VERSIONS
from rnn_engine_shaders import Constant, Include, specialise
from tests.support.models import deep_embedded, random_model, tiny_shape
from tests.support.older_models import OLDER_SHAPES, QWEN2_SHAPES, tiny_v5, tiny_v6, tiny_v6_qwen2, tiny_v7_qwen2

VARIANTS: tuple[MatMulVariant, ...] = (
    *(StreamVariant(tokens, 2, 4, 1, inputs) for tokens in (1, 8) for inputs in ("direct", "broadcast", "by_token")),
    StreamVariant(tokens=4, panels=2, splits=8),
    StreamVariant(tokens=2, panels=2, splits=4, unroll=4),
    StreamVariant(tokens=2, inputs="broadcast", unroll=2),
    *(
        TiledVariant(64, tokens, each, each, 1, number)
        for tokens, each in ((32, 4), (128, 8))
        for number in ("f32", "f16")
    ),
)
INT8_VARIANTS: tuple[MatMulVariant, ...] = (
    *(StreamVariant(tokens, 2, 4, 1, inputs, "int8") for tokens in (1, 8) for inputs in ("direct", "by_token")),
    StreamVariant(tokens=4, panels=2, splits=8, number="int8"),
    StreamVariant(tokens=2, panels=2, splits=4, number="int8", unroll=2),
    *(TiledVariant(64, tokens, each, each, 4, "int8") for tokens, each in ((32, 4), (128, 8))),
)
_LIMITS = StepLimits(num_slots=4, max_tokens=64, max_rows=8, num_candidates=16)
_NORM: dict[str, Constant] = {
    "WIDTH": 4096,
    "STATE_STRIDE": 4096 * 66,
    "SHIFT_OFFSET": 0,
    "MIX": 0,
    "NORM_WEIGHT": 6 * 4096,
    "NORM_BIAS": 7 * 4096,
    "NORM_EPSILON": 1e-5,
    "CENTRES": True,
    "SHIFTS": True,
}  # of the widest models


def every_shader() -> dict[str, str]:
    """Return the text of each shader, by the name of its first use."""
    names: dict[str, str] = {}  # by text
    for name, text in _each():
        names.setdefault(text, name)
    return {f"{number}: {name}": text for number, (text, name) in enumerate(names.items())}


def _each() -> Iterator[tuple[str, str]]:
    yield "subgroup size", specialise("subgroup_size", {"THREADS": 64}).text
    for number in ("number_f32", "number_f16"):
        yield f"peak, {number}", specialise("peak", {"THREADS": 64, "ROUNDS": 256}, {"NUMBER": number}).text
    yield from _variants()
    shape = tiny_shape()
    heads_of_64 = (tiny_shape(head_size=64), tiny_v5(head_size=64), tiny_v6(head_size=64))
    hybrids = (*QWEN2_SHAPES, tiny_v6_qwen2(head_size=64, kv_heads=1), tiny_v7_qwen2(head_size=64, gate_rank=0))
    shapes = (
        *OLDER_SHAPES,
        *hybrids,
        shape,
        deep_embedded(shape),
        tiny_shape(layers=1, width=40, head_size=20),
        *heads_of_64,
    )
    for kind in ("software", "discrete"):
        info = DeviceInfo(0, kind, kind, "none", "none")
        for can_broadcast in (False, True):
            tuning = tuning_for(info, can_broadcast=can_broadcast)
            label = f"{kind} device {'with' if can_broadcast else 'without'} broadcast"
            for each in shapes:
                yield from shaders_of(each, "f16", tuning, label)
            adapters_in_f16 = [f"{name},adapters=f16" for name in BLOCK_FORMATS]
            for weights in (*WEIGHT_FORMATS, "int8,activations=int8", *adapters_in_f16):
                yield from shaders_of(shape, weights, tuning, label)


def _variants() -> Iterator[tuple[str, str]]:
    """Yield shaders with every constant and include that a matmul's variants may have."""
    for variant in (*VARIANTS, *INT8_VARIANTS):
        for name, text in shaders_of_variant(variant):
            yield f"{name}, a variant", text


def shaders_of_variant(
    variant: MatMulVariant,
    constants: Mapping[str, Constant] = MappingProxyType({}),
    includes: Mapping[str, Include] = MappingProxyType({}),
    tuning: Tuning = tuning_for(SizingDevice.smallest().info, can_broadcast=True),  # noqa: B008
) -> Iterator[tuple[str, str]]:
    """Yield the shader of `variant` for each weight format that it can multiply, with the format's name.

    `constants` and `includes` are added to those that the variant has.
    """
    device = _Collector()
    matmuls = MatMulKernels(device.kernels, tuning, _LIMITS)
    formats = [each for each in STORED_FORMATS.values() if variant.number != "int8" or each.packed is not None]
    if "one_format" in includes:
        formats = [each for each in formats if each.name in KEPT_FORMATS]
    for weights in formats:
        norm = _NORM if isinstance(variant, StreamVariant) and variant.inputs == "normed" else {}
        matmuls.get(variant, weights, {**norm, **constants}, includes)
    for weights, (_, text) in zip(formats, device.shaders, strict=True):
        yield weights.name, text


def shaders_of(shape: ModelShape, weights: str, tuning: Tuning, label: str) -> Iterator[tuple[str, str]]:
    """Load a model of `shape` on a device that runs nothing, and yield the shaders of every kind of step.

    If the version's initial states can be trained, those of training follow. Their names say the kernel, the version,
    the weights and the `label`.
    """
    model = random_model(shape, seed=1)
    tensors = {name: TensorInfo(values.shape, values.dtype) for name, values in model.tensors.items()}
    others = [f"{name}={weights.split(',')[0]}" for name in ("head", "emb", "adapters") if f"{name}=" not in weights]
    choice = WeightChoice.parse(",".join([weights, *others]))
    unread, version = UnreadModel(shape, tensors), VERSIONS.get(shape.version)
    device = _Collector()
    with closing(device.allocate()) as memory:
        runner = GpuRunner(
            unread,
            version.load_layers,
            device,
            memory,
            MatMulKernels(device.kernels, tuning, _LIMITS, activations=choice.activations),
            format_of=choice.of(shape),
            limits=_LIMITS,
            progress=lambda *_: None,
        )
        for count in sorted(tuning.token_counts(_LIMITS.max_tokens)):
            for has_masks in (False, True):
                runner.plan(count, 1, 1, has_masks=has_masks, has_draws=True, has_following=True)
    with_vectors = LoraSettings(train_vectors=not shape.version.startswith("v5"))
    for lora in (None, with_vectors) if version.load_backward is not None else ():
        assert version.load_backward is not None
        pairs = None if lora is None else find_pairs(lora, tensors)
        with closing(device.allocate()) as memory:
            trainer = GpuTrainer(
                unread,
                version.load_backward,
                device,
                memory,
                MatMulKernels(device.kernels, tuning, _LIMITS, pairs=pairs),
                format_of=choice.of(shape),
                limits=_LIMITS,
                optimizer=Optimizer(),
                trains_shifts=True,
                progress=lambda *_: None,
            )
            trainer.plan(_LIMITS.max_tokens, 1, _LIMITS.max_rows)
    for name, text in device.shaders:
        yield f"{name} of {shape.version}, weights {weights}, {label}", text


class _Collector(SizingDevice):
    """A device that keeps the text of every shader it gets."""

    def __init__(self) -> None:
        smallest = SizingDevice.smallest()
        limits = {**smallest.wgpu_device.limits, "max-storage-buffers-per-shader-stage": 16}
        super().__init__(smallest.info, limits)
        self.shaders: list[tuple[str, str]] = []
        self.wgpu_device.create_shader_module = self._keep

    def _keep(self, *, label: str, code: str) -> Any:  # noqa: ANN401
        self.shaders.append((label, code))
