"""`python -m tools.bench.predict`: predict the speed of decode on real GPUs from their published figures.

No GPU takes part. Models of published shapes are loaded onto a device that only counts, with the fixed choices for
hardware. `rnn_engine.forward.cost` predicts the time of each dispatch of a step of one token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import click
import numpy as np

from rnn_engine.forward import GpuRunner
from rnn_engine.forward.cost import DISPATCH, GPUS, LATENCY, NORM_WAITS, Gpu, HardwareCost, predict_dispatches
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.step import StepLimits, StepSize
from rnn_engine.forward.tuning import tuning_for
from rnn_engine.forward.weight_choice import parse_weights
from rnn_engine.gpu import Plan, SizingDevice
from rnn_engine.model.model_file import UnreadModel
from rnn_engine.tensor_files.source import TensorInfo
from rnn_engine.types import ModelShape
from rnn_engine.versions.table import VERSIONS
from rnn_engine.versions.v6.layout import NUM_MIXES, ShapeV6
from rnn_engine.versions.v7.layout import ShapeV7
from tools.bench.peers import SHAPES
from tools.bench.turns import comma_separated
from tools.markdown import table

# Metal allows these, and Vulkan's drivers of the other GPUs more.
_LIMITS = {
    "max-compute-workgroup-storage-size": 1 << 15,
    "max-storage-buffers-per-shader-stage": 16,
    "max-storage-buffer-binding-size": 1 << 31,
    "max-buffer-size": 1 << 31,
}
_STEP = StepSize(num_tokens=1, num_runs=1, num_rows=1, has_draws=True)


@dataclass(frozen=True)
class LoadedModel:
    """A model of the shape `name` without its numbers, loaded with matrices in the format `weights`."""

    name: str
    weights: str

    @cached_property
    def _loaded(self) -> tuple[GpuRunner, MatMulKernels]:
        shape = SHAPES[self.name]
        tensors = list_tensors(shape)
        chosen, activations = parse_weights(self.weights, shape)

        smallest = SizingDevice.smallest()
        device = SizingDevice(smallest.info, {**smallest.wgpu_device.limits, **_LIMITS})
        limits = StepLimits(num_slots=1, max_tokens=64, max_rows=1, num_candidates=128)
        tuning = tuning_for(device.info, can_broadcast=True)
        matmuls = MatMulKernels(device.kernels, tuning, limits, activations=activations)
        runner = GpuRunner(
            UnreadModel(shape, tensors),
            VERSIONS.get(shape.version).load_layers,
            device,
            device.allocate(),
            matmuls,
            format_of=chosen,
            limits=limits,
            progress=lambda *_: None,
        )
        return runner, matmuls

    @cached_property
    def plan(self) -> Plan:
        """The dispatches of a step of one token, which the device draws."""
        runner, _ = self._loaded
        return runner.plan(_STEP.num_tokens, _STEP.num_runs, _STEP.num_rows, has_draws=True)

    @property
    def weight_bytes(self) -> int:
        return self._loaded[0].weight_bytes

    def seconds(self, gpu: Gpu) -> list[float]:
        """Return the predicted seconds of each dispatch of `plan`."""
        return list(predict_dispatches(self.plan.dispatches, self._loaded[1], _STEP, HardwareCost(gpu)))

    def shares(self, gpu: Gpu) -> dict[str, float]:
        """Return for each kind of matmul the least part of the memory's published rate that its dispatches reach.

        The fixed time of a dispatch is not counted, nor is that of a norm within it.
        """
        singles = [single for matmul in self._loaded[1].bound for single in matmul.singles]
        normed = {id(single.bind_group) for single in singles if single.variant.inputs == "normed"}
        shares: dict[str, float] = {}
        for dispatch, seconds in zip(self.plan.dispatches, self.seconds(gpu), strict=True):
            if dispatch.operations:
                part = dispatch.label.split(" ", 2)[-1]
                fixed = DISPATCH + (NORM_WAITS * LATENCY if id(dispatch.bind_group) in normed else 0)
                share = dispatch.moved_bytes / (seconds - fixed) / gpu.memory
                shares[part] = min(share, shares.get(part, share))
        return shares


def list_tensors(shape: ModelShape) -> dict[str, TensorInfo]:
    """Return the tensors of a model of this shape, all in f16."""
    assert isinstance(shape, ShapeV6 | ShapeV7)
    sizes = {"D": shape.width, "V": shape.vocab_size, "H": shape.num_heads, "N": shape.head_size, "F": shape.ffn_width}
    if isinstance(shape, ShapeV7):
        sizes |= {f"R_{name}": getattr(shape.ranks, name) for name in "wavg"}
    else:
        sizes |= {"M": NUM_MIXES, "R_mix": shape.mix_rank, "R_mixes": NUM_MIXES * shape.mix_rank}
        sizes |= {"R_decay": shape.decay_rank, "K": shape.width // shape.heads_a_kv_head}
    specs = VERSIONS.get(shape.version).layout.specs(shape.num_layers)
    return {
        spec.name: TensorInfo(tuple(sizes[dim] for dim in spec.dims), np.dtype(np.float16))
        for spec in specs
        if spec.required
    }


@click.command()
@click.option("--models", callback=comma_separated(str), default="0.4B,1.5B,2.9B,7.2B", show_default=True)
@click.option("--weights", callback=comma_separated(str), default="f16,int8,int4", show_default=True)
@click.option("--matrices", is_flag=True, help="Print the share of the memory's rate that each kind of matmul reaches.")
def main(models: Sequence[str], weights: Sequence[str], *, matrices: bool) -> None:
    """Print predicted tokens a second of decode with one slot, and in brackets the share of the memory's rate."""
    if unknown := set(models) - SHAPES.keys():
        raise click.BadParameter(f"no shape {', '.join(sorted(unknown))}; expected some of {', '.join(SHAPES)}")
    loaded = [LoadedModel(model, each) for model in models for each in weights]
    for model in loaded if matrices else ():
        head = (f"{model.name} {model.weights}", *model.shares(GPUS[0]))
        rows = [(gpu.name, *map("{:.0%}".format, model.shares(gpu).values())) for gpu in GPUS]
        click.echo(f"{table(head, rows)}\n")
    if not matrices:
        head = ("GPU", *(f"{model.name} {model.weights}" for model in loaded))
        click.echo(table(head, ((gpu.name, *_speeds(gpu, loaded)) for gpu in GPUS)))


def _speeds(gpu: Gpu, models: Sequence[LoadedModel]) -> Iterator[str]:
    for model in models:
        speed = 1 / sum(model.seconds(gpu))
        yield f"{speed:.0f} ({speed * model.weight_bytes / gpu.memory:.0%})"


if __name__ == "__main__":
    main()
