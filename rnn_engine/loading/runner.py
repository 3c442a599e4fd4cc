"""Open model files, and load models onto a device as runners."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rnn_engine.errors import DeviceMemoryError, InvalidRequestError, ModelError
from rnn_engine.forward import CpuRunner, GpuRunner, Progress, SplitRunner, no_progress
from rnn_engine.forward.cpu_matmul import count_threads
from rnn_engine.forward.cpu_matmul import load_layers as load_cpu_layers
from rnn_engine.forward.loras import pairs_for
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.onnx_graph import has_onnxruntime
from rnn_engine.forward.slot_states import StateLayout
from rnn_engine.forward.split_runner import PartRunner
from rnn_engine.forward.step import StepLimits, slot_penalty_bytes
from rnn_engine.forward.tuning import Tuning, tuning_for
from rnn_engine.forward.weight_choice import FormatOf, describe_blocks, has_bytes, parse_weights
from rnn_engine.gpu import Device, SizingDevice, open_device
from rnn_engine.loading.kernel_choices import FIXED, TuneOrder, choose_kernels, kernel_limits
from rnn_engine.loading.placement import cut, is_placement
from rnn_engine.model import LoraChoice, ModelFile, ModelPart
from rnn_engine.model.lora import projection
from rnn_engine.model.model_file import UnreadModel
from rnn_engine.reference import Weights
from rnn_engine.types import NO_LORAS, DeviceMemory, LoraRoom, Model, ModelShape, TracingRunner
from rnn_engine.versions.table import VERSIONS, VersionTable
from rnn_engine.versions.v5 import ShapeV5


def open_model(
    path: Path,
    loras: Sequence[LoraChoice] = (),
    versions: VersionTable = VERSIONS,
    *,
    v5_group_norm_epsilon: float | None = None,
) -> ModelFile:
    """Open a model file, check its header, and merge `loras` into it. The caller closes it, perhaps as a context.

    `v5_group_norm_epsilon` is for an RWKV-5 model that was not trained with the usual one, 64e-5. Raises ModelError if
    it is given for another version, if a file can't be read, if the model is not served, or if a LoRA does not fit; the
    message has the path.
    """
    model = ModelFile.open(path, versions.find_layout)
    with ExitStack() as undo:
        undo.callback(model.close)
        if v5_group_norm_epsilon is not None:
            if not isinstance(model.shape, ShapeV5):
                raise ModelError(
                    f"{path}: a group norm epsilon of {v5_group_norm_epsilon:g} is not allowed for RWKV "
                    f"{model.shape.version}; expected none, since only RWKV-5 has this setting"
                )
            model.shape = model.shape.with_group_norm_epsilon(v5_group_norm_epsilon)
        if loras:
            model.merge(loras, versions.get(model.shape.version).layout.list_specs(model.names))
        undo.pop_all()
    return model


_LOGITS_BYTES = 64 << 20  # for the logits of one step's rows, unless the user sets `max_rows`
_MAX_SPARE_SLOTS = 64
_FEW_WEIGHTS = 1 << 22  # in layers, up to which numpy is as fast as onnxruntime and starts sooner
_CANDIDATES = 128

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunnerSize:
    """The capacities of a runner.

    Its slots are followed by spare slots, which the runner's own `num_slots` includes: as many as `spare_bytes` and the
    device have room for, at most 64.
    """

    num_slots: int = 8
    spare_bytes: int = 0
    max_tokens: int | None = None  # in a step; None: as many as suit the device
    max_rows: int | None = None  # of logits in a step
    max_loras: int = 0  # that a step can use
    max_lora_rank: int = 16

    def loras_of(self, model: Model) -> LoraRoom:
        """Return the room for LoRAs beside the matrices of a model, or of a part of one."""
        if not self.max_loras or VERSIONS.get(model.shape.version).run_backward is None:
            return NO_LORAS  # versions that train none run none
        shapes = {name: model.matrix(name).shape for name in model.names if projection(name) is not None}
        matrices = {name: (int(outer), int(inner)) for name, (outer, inner) in shapes.items()}
        return LoraRoom(self.max_loras, self.max_lora_rank, matrices)

    def candidates_of(self, shape: ModelShape) -> int:
        """Return how many of the greatest logits of each row a step reads back."""
        return min(_CANDIDATES, shape.row_size)

    def rows_of(self, shape: ModelShape) -> int:
        """Return the most rows of logits in a step for a model of this `shape`: `max_rows` or its default."""
        if self.max_rows is not None:
            return self.max_rows
        return max(self.num_slots, min(64, _LOGITS_BYTES // (4 * shape.row_size)))


def load_runner(
    model: Model,
    device: str = "auto",
    size: RunnerSize = RunnerSize(),
    *,
    weights: str | FormatOf = "f16",
    checked: bool = False,
    warm_up: bool = False,
    tune: TuneOrder = FIXED,
    threads: int | None = None,
    kept: Sequence[PartRunner | None] = (),
    progress: Progress = no_progress,
    versions: VersionTable = VERSIONS,
) -> TracingRunner:
    """Load `model` onto `device` and return its runner, which runs steps there. The model may then be closed.

    `device` is "auto", an index, a part of a name, or "cpu"; or several of them, as `is_placement` reads them, among
    which the layers are divided. On "cpu", floats are f32, blocks too unless activations are int8, and `threads`
    multiply. `weights` is the format of matrices as `WeightChoice.parse` reads it, or a function from each matrix to
    its format; with a function, products are in f32. `checked` shaders test every index. `tune` sets how the kernels
    are chosen. `warm_up` runs a step of every kind first, since drivers compile a kernel when it is first run. Of
    several devices, `kept` has for each its loaded runner, or None to load it; if it is empty, all are loaded.
    Models on one device share it, and free their own memory when they are closed. May be called from any thread.

    Raises DeviceError if there is no such device, DeviceMemoryError if it has no room, and InvalidRequestError for
    activations in int8 on a device if no weights are bytes; nothing is held then.
    """
    format_of, activations = _formats(weights, model)
    if activations == "int8" and device != "cpu" and not has_bytes(model, format_of):
        message = "activations=int8 needs a matrix in int8 or q8_0, and this model has none with these weights"
        raise InvalidRequestError("weights", weights, "activations=f32", message)

    def load_part(part: Model, own: str, *, in_bytes: bool) -> GpuRunner | CpuRunner:
        """Load `part`, the model or a part of it, onto the device `own`; blocks are multiplied `in_bytes` there."""
        own_size = replace(size, spare_bytes=size.spare_bytes * part.shape.num_layers // model.shape.num_layers)
        format_of, _ = _formats(weights, part)
        if own == "cpu":
            return _load_cpu_runner(part, own_size, versions, format_of, in_bytes=in_bytes, threads=threads)
        for line in describe_blocks(part, format_of):
            logger.info("%s", line)

        def load(size: RunnerSize) -> GpuRunner:
            opened = open_device(own, checked=checked)
            limits = kernel_limits(opened)
            tuning = tuning_for(opened.info, can_broadcast=limits.can_broadcast)
            with ExitStack() as undo:
                runner, matmuls = _load_gpu_runner(
                    part, opened, tuning, size, format_of, progress, versions, activations=activations
                )
                undo.callback(runner.close)
                choose_kernels(tune, runner, matmuls, limits, progress)
                if warm_up:
                    runner.warm_up(matmuls.tuning.token_counts(runner.max_tokens), progress)
                undo.pop_all()
            return runner

        try:
            return load(own_size)
        except DeviceMemoryError as error:
            if own_size.spare_bytes == 0:
                raise
            logger.warning("loading again without spare slots: %s", error)
        return load(replace(own_size, spare_bytes=0))

    in_bytes = activations == "int8"
    if not is_placement(device):
        return load_part(model, device, in_bytes=in_bytes)
    in_bytes |= isinstance(weights, str) and "activations=" not in weights  # as `cpu_weights` has it
    runners: list[PartRunner] = []
    with ExitStack() as undo:
        for number, (part, own) in enumerate(cut(model, device)):
            if kept and (runner := kept[number]) is not None:
                runners.append(runner)
            else:
                runners.append(load_part(part, own, in_bytes=in_bytes))
                undo.callback(runners[-1].close)
        whole = SplitRunner(model.shape, runners)
        undo.pop_all()
    return whole


def _formats(weights: str | FormatOf, model: Model) -> tuple[FormatOf, str]:
    """Return the format of each matrix of `model`, which may be a part of a model, and that of activations."""
    if not isinstance(model, ModelPart):
        return parse_weights(weights, model.shape)
    format_of, activations = parse_weights(weights, model.model.shape)
    return (lambda name: format_of(model.name_in_model(name))), activations


def measure_runner(
    model: UnreadModel | ModelPart, device: SizingDevice, size: RunnerSize, *, weights: str
) -> DeviceMemory:
    """Return the memory of a runner on a device like `device`, loaded without weights. Raises DeviceError."""
    format_of, activations = _formats(weights, model)
    tuning = tuning_for(device.info, can_broadcast=False)
    runner, _ = _load_gpu_runner(model, device, tuning, size, format_of, no_progress, VERSIONS, activations=activations)
    return runner.memory


def _load_gpu_runner(
    model: Model,
    device: Device,
    tuning: Tuning,
    size: RunnerSize,
    format_of: FormatOf,
    progress: Progress,
    versions: VersionTable,
    *,
    activations: str,
) -> tuple[GpuRunner, MatMulKernels]:
    shape = model.shape
    slot_bytes = 4 * StateLayout(shape).stride  # in each layer's buffer
    most_spare = device.max_binding_bytes // slot_bytes - size.num_slots
    has_rows = not isinstance(model, ModelPart) or model.has_head
    num_penalty_slots = min(size.num_slots, device.max_binding_bytes // slot_penalty_bytes(shape.vocab_size))
    limits = StepLimits(
        size.num_slots + _spare_slots(size.spare_bytes, spare_slot_bytes(shape), most_spare),
        max(size.num_slots, size.max_tokens or tuning.step_tokens(shape)),
        size.rows_of(shape) if has_rows else 1,
        size.candidates_of(shape),
        num_penalty_slots=num_penalty_slots if shape.has_head and has_rows else 0,
    )
    with ExitStack() as undo:
        memory = device.allocate()
        undo.callback(memory.close)
        load_layers = versions.get(shape.version).load_layers
        room = size.loras_of(model)
        matmuls = MatMulKernels(device.kernels, tuning, limits, activations=activations, pairs=pairs_for(room))
        runner = GpuRunner(
            model,
            load_layers,
            device,
            memory,
            matmuls,
            format_of=format_of,
            limits=limits,
            progress=progress,
            lora_room=room,
        )
        undo.pop_all()
    return runner, matmuls


def _load_cpu_runner(
    model: Model, size: RunnerSize, versions: VersionTable, format_of: FormatOf, *, in_bytes: bool, threads: int | None
) -> CpuRunner:
    shape, lora_room = model.shape, size.loras_of(model)
    run_layers = versions.get(shape.version).run_layers
    if has_onnxruntime() and (in_bytes or shape.num_layers * shape.layer_weights >= _FEW_WEIGHTS):
        num_threads = count_threads(shape, threads)
        weights, run_layers = load_cpu_layers(
            model, run_layers, format_of, in_bytes=in_bytes, num_threads=num_threads, lora_room=lora_room
        )
    else:
        weights = Weights.read(model)
    return CpuRunner(
        weights,
        run_layers,
        num_slots=size.num_slots + _spare_slots(size.spare_bytes, shape.state_bytes),
        max_tokens=max(size.num_slots, size.max_tokens or 64),
        max_rows=size.rows_of(shape),
        num_candidates=size.candidates_of(shape),
        lora_room=lora_room,
    )


def spare_slot_bytes(shape: ModelShape) -> int:
    """Return the most bytes that a spare slot (for a cached state) takes on any device, for a model of this `shape`."""
    return shape.num_layers * 4 * StateLayout(shape).stride


def _spare_slots(num_bytes: int, slot_bytes: int, room: int = _MAX_SPARE_SLOTS) -> int:
    return max(min(num_bytes // slot_bytes, room, _MAX_SPARE_SLOTS), 0)
