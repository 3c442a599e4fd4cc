"""Load trainers of initial states and LoRAs onto a device, and compute beforehand the memory that they take there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Protocol

from rnn_engine.backward import Optimizer, Trainer
from rnn_engine.backward.cpu_trainer import CpuTrainer
from rnn_engine.backward.gpu_trainer import GpuTrainer
from rnn_engine.bounds import AUTO, AUTO_FORMATS
from rnn_engine.errors import DeviceError, DeviceMemoryError, InvalidRequestError, ModelError
from rnn_engine.forward import Progress, no_progress
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.pairs import Pairs
from rnn_engine.forward.step import StepLimits
from rnn_engine.forward.tuning import Tuning, tuning_for
from rnn_engine.forward.weight_choice import FormatOf, describe_blocks, parse_weights
from rnn_engine.gpu import Device, SizingDevice, list_devices, open_device
from rnn_engine.loading.kernel_choices import kernel_limits
from rnn_engine.loading.memory import check_cpu_weights, check_unknown_memory, free_memory, in_words, usual_weights
from rnn_engine.loading.placement import is_placement
from rnn_engine.loading.settings import LoraSettings
from rnn_engine.model import ModelFile
from rnn_engine.model.lora import projection, shifts_and_gates
from rnn_engine.model.model_file import UnreadModel
from rnn_engine.types import DeviceMemory, ModelShape
from rnn_engine.versions.table import VERSIONS

DEFAULT_OPTIMIZER: Final = Optimizer()
_LOGITS_BYTES: Final = 32 << 20  # for the rows of logits that are computed at a time
_LEAST_TOKENS: Final = 64  # that an error suggests

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainerSize:
    """The capacities of a trainer: the most inputs, and the most documents, of one call; and what it trains."""

    max_tokens: int = 1024
    max_documents: int = 16
    train_shifts: bool = False  # the token shifts are trained, too
    lora: LoraSettings | None = None  # low-rank pairs that are trained in place of an initial state

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_documents"):
            if getattr(self, name) < 1:
                raise InvalidRequestError(name, getattr(self, name), "at least 1")

    def limits(self, shape: ModelShape) -> StepLimits:
        rows = min(self.max_tokens, max(8, _LOGITS_BYTES // (4 * shape.vocab_size)))
        return StepLimits(self.max_documents, self.max_tokens, rows, num_candidates=1)

    @property
    def state_rate(self) -> float | None:
        return self.lora.state_rate if self.lora is not None and self.lora.train_state else None

    @property
    def what(self) -> str:
        return "initial states" if self.lora is None else "LoRAs"

    def pairs(self, tensors: Mapping[str, Shaped]) -> Pairs | None:
        """Return the low-rank pairs for a model with these tensors. Raises InvalidRequestError for unknown targets."""
        return None if self.lora is None else find_pairs(self.lora, tensors)


DEFAULT_SIZE: Final = TrainerSize()


class Shaped(Protocol):
    """What has a shape, such as an array or a tensor in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def find_pairs(settings: LoraSettings, tensors: Mapping[str, Shaped]) -> Pairs:
    """Return the pairs for a model with `tensors`, and any vectors beside them.

    Raises InvalidRequestError for a target that the model does not have, and for vectors that can't be trained.
    """
    projections = {name: matrix for name in tensors if (matrix := projection(name)) is not None}
    matrices = sorted(set(projections.values()))
    known = [*sorted({matrix.partition(".")[0] for matrix in matrices}), *matrices]
    for target in settings.targets or ("",):
        if target not in known:
            raise InvalidRequestError("targets", target, f"some of {', '.join(known)}")
    shapes: dict[str, tuple[int, int]] = {}
    for name, matrix in projections.items():
        if not {matrix, matrix.partition(".")[0]}.isdisjoint(settings.targets):
            outer, inner = tensors[name].shape
            shapes[name] = outer, inner
    total = settings.result.rank
    if settings.init == "pissa" and settings.rank > (most := min(map(min, shapes.values()))):
        raise InvalidRequestError("rank", settings.rank, f"at most {most}, as many singular values as each matrix has")
    vectors: dict[str, tuple[int, ...]] = {}
    if settings.train_vectors:
        vectors = {name: tensors[name].shape for name in shifts_and_gates(tensors)}
        if not vectors:
            raise InvalidRequestError("train_vectors", True, "false; only vectors of RWKV-6 and 7 can be trained")
    return Pairs(shapes, total, settings.alpha / settings.rank, total - settings.rank, vectors)


def load_trainer(
    model: ModelFile,
    device: str = "auto",
    size: TrainerSize = DEFAULT_SIZE,
    *,
    weights: str | None = None,
    optimizer: Optimizer = DEFAULT_OPTIMIZER,
    device_memory: int | None = None,
    progress: Progress = no_progress,
) -> Trainer:
    """Load `model` onto a device and return a trainer of what `size` says. The model may then be closed.

    `device` is "auto", an index, a part of a name, or "cpu" for numpy. `weights` is the format of matrices on a GPU, as
    `WeightChoice.parse` reads it, or `AUTO` for the best one that fits; None keeps the blocks of a quantised file, and
    is f16 for any other. Activations are in f32. `device_memory` is the device's number of bytes, for devices whose
    memory can't be found out.

    Raises ModelError for a version of RWKV that can't be trained, DeviceError if there is no such
    device, and InvalidRequestError for settings that are not allowed. Raises DeviceMemoryError if the device has no
    room: if its memory is known, before anything is loaded, and with the settings that would fit.
    """
    version = VERSIONS.get(model.shape.version)
    if version.run_backward is None:
        raise ModelError(f"{size.what} of {version.title} can't be trained; expected RWKV-5, 6 or 7")
    if is_placement(device):
        raise InvalidRequestError("device", device, "a single device, since training does not divide a model")
    if device == "auto" and (version.load_backward is None or not list_devices()):
        device = "cpu"
    if device == "cpu":
        check_cpu_weights(weights, has_blocks=False)
        return CpuTrainer(
            model,
            version.run_layers,
            version.run_backward,
            optimizer=optimizer,
            trains_shifts=size.train_shifts,
            pairs=size.pairs(model.tensors),
            state_rate=size.state_rate,
            max_documents=size.max_documents,
            max_tokens=size.max_tokens,
        )
    if version.load_backward is None:
        raise DeviceError(f"{size.what} of {version.title} can't be trained on a GPU; expected the device cpu")
    weights = plan_trainer(model, device, size, weights=weights, device_memory=device_memory)
    format_of = _formats(weights, model.shape)
    for line in describe_blocks(model, format_of):
        logger.info("%s", line)
    opened = open_device(device)
    tuning = tuning_for(opened.info, can_broadcast=kernel_limits(opened).can_broadcast)
    return _load_gpu_trainer(model, opened, tuning, size, format_of, optimizer, progress)


def plan_trainer(
    model: ModelFile, device: str, size: TrainerSize, *, weights: str | None, device_memory: int | None = None
) -> str:
    """Return the weight format with which a trainer of `model` fits on a GPU, without loading anything.

    For the arguments and errors see `load_trainer`. The version must have a backward pass on devices.
    """
    usual = usual_weights(model)
    weights = usual if weights is None else weights
    like = SizingDevice.like(device)
    available = free_memory(like.info, device_memory)
    if available is None:
        check_unknown_memory(weights, like.info)
        return weights
    unread = UnreadModel(model.shape, model.tensors)

    @cache
    def needed(weights: str, size: TrainerSize) -> int:
        return measure_trainer(unread, like, size, weights=weights).total

    choices = (usual, *AUTO_FORMATS[1:])
    for name in choices if weights == AUTO else (weights,):
        if needed(name, size) <= available:
            return name
    ways = [f"weights {other}" for other in choices if needed(other, size) <= available]
    ways += _smaller(size, lambda size: needed(name, size) <= available)
    raise DeviceMemoryError(
        f"training needs {in_words(needed(name, size))} with weights {name}, {size.max_tokens} tokens and "
        f"{size.max_documents} documents a call, more than the {in_words(available)} that {like.info.name} has free; "
        f"{'it fits with ' + ' or '.join(ways) if ways else 'expected a smaller model'}"
    )


def _smaller(size: TrainerSize, fits: Callable[[TrainerSize], bool]) -> Iterator[str]:
    """Yield in words the greatest part of the tokens, and of the documents, with which a trainer fits."""
    for field, least in (("max_tokens", _LEAST_TOKENS), ("max_documents", 1)):
        count = getattr(size, field) // 2
        while count >= least and not fits(replace(size, **{field: count})):
            count //= 2
        if count >= least:
            yield f"{field} {count}"


def measure_trainer(model: UnreadModel, device: SizingDevice, size: TrainerSize, *, weights: str) -> DeviceMemory:
    """Return a trainer's memory on a device like `device`, loaded without weights; see `load_trainer`."""
    tuning, format_of = tuning_for(device.info, can_broadcast=False), _formats(weights, model.shape)
    return _load_gpu_trainer(model, device, tuning, size, format_of, DEFAULT_OPTIMIZER, no_progress).memory


def _formats(weights: str, shape: ModelShape) -> FormatOf:
    """Return the weight format of each matrix. Raises InvalidRequestError for activations other than f32."""
    format_of, activations = parse_weights(weights, shape)
    if activations != "f32":
        message = f"weights {weights}: nothing can be trained with activations={activations}; expected f32"
        raise InvalidRequestError("weights", weights, "activations=f32", message)
    return format_of


def _load_gpu_trainer(
    model: ModelFile | UnreadModel,
    device: Device,
    tuning: Tuning,
    size: TrainerSize,
    format_of: FormatOf,
    optimizer: Optimizer,
    progress: Progress,
) -> GpuTrainer:
    load_backward, limits = VERSIONS.get(model.shape.version).load_backward, size.limits(model.shape)
    assert load_backward is not None
    with ExitStack() as undo:
        memory = device.allocate()
        undo.callback(memory.close)
        trainer = GpuTrainer(
            model,
            load_backward,
            device,
            memory,
            MatMulKernels(device.kernels, tuning, limits, pairs=size.pairs(model.tensors)),
            format_of=format_of,
            limits=limits,
            optimizer=optimizer,
            trains_shifts=size.train_shifts,
            state_rate=size.state_rate,
            progress=progress,
        )
        undo.pop_all()
    return trainer
