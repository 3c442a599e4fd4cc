"""The kernels that are fastest on a device: searched for at the first load, and kept for those that follow."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from rnn_engine.errors import check_finite
from rnn_engine.files import cache_folder, read_record, short_digest, write_record
from rnn_engine.forward import GpuRunner, Progress
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.tuner import Choice, Chosen, Tuner
from rnn_engine.forward.tuning import TOKEN_COUNTS, MatMulClass
from rnn_engine.forward.variants import KernelLimits, from_record, to_record
from rnn_engine.gpu import Device, measure_subgroup_size

DEFAULT_SECONDS: Final = 10.0
_LEAST_BYTES: Final = 64 << 20  # of weights, from which on the choice of kernels is felt
_RECIPE: Final = 2  # changes whenever a record has another form

_KERNEL_FILES: Final = (
    *("matmul", "products_", "tiles_", "inputs_", "packed_", "weights_"),
    *("segments", "number_", "eight", "broadcast"),
)  # how the names of the matmuls' WGSL begin

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TuneOrder:
    """How a load chooses its kernels.

    `seconds` is what the search may take; 0 = the fixed choices, and nothing is read or kept; None = what pays:
    `DEFAULT_SECONDS` on hardware for a model that is large enough, else what is kept alone.
    """

    seconds: float | None = 0.0
    anew: bool = False  # also what is kept is searched for again
    exhaustive: bool = False
    half: bool = False  # products in f16 are allowed, too
    on_found: Callable[[Chosen], None] = lambda _: None  # called with what the search found

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is none."""
        check_finite("seconds", self.seconds)

    def budget(self, device: Device, weight_bytes: int) -> float:
        if self.seconds is not None:
            return self.seconds
        return 0.0 if device.info.is_software or weight_bytes < _LEAST_BYTES else DEFAULT_SECONDS


FIXED: Final = TuneOrder()


def kernel_limits(device: Device) -> KernelLimits:
    """Return what the kernels of `device` may use."""
    limits = device.wgpu_device.limits
    return KernelLimits(
        threads=min(limits["max-compute-invocations-per-workgroup"], limits["max-compute-workgroup-size-x"]),
        workgroup_bytes=limits["max-compute-workgroup-storage-size"],
        can_broadcast=measure_subgroup_size(device) >= 8,
        has_f16=device.has_f16,
    )


def choose_kernels(
    order: TuneOrder, runner: GpuRunner, matmuls: MatMulKernels, limits: KernelLimits, progress: Progress
) -> None:
    """Give the `matmuls` of `runner` the kernels that are kept, or are found in the time of `order`.

    It must have run no step yet.
    """
    if order.seconds == 0:
        return
    kept = KeptChoices.of(runner.device)
    known = kept.read(limits)
    seconds = order.budget(runner.device, runner.weight_bytes)
    if seconds > 0:
        tuner = Tuner(runner, matmuls, limits, half=order.half)
        searched = set() if order.anew else {kind for kind, _ in known}
        found = tuner.search(seconds, progress, known=searched, exhaustive=order.exhaustive)
        known = {**known, **found}
        if found:
            kept.write(known)
            order.on_found(found)
    matmuls.tuning = replace(
        matmuls.tuning, found={key: choice.variant for key, choice in known.items() if choice.gain > 1}
    )


@dataclass(frozen=True, slots=True)
class KeptChoices:
    """The record of one device with one driver and this version of the kernels."""

    path: Path
    key: Mapping[str, Any]

    @classmethod
    def of(cls, device: Device) -> KeptChoices:
        info = device.info
        key = {
            "recipe": _RECIPE,
            "device": info.name,
            "backend": info.backend,
            "driver": info.driver,
            "kernels": kernels_version(),
        }
        name = short_digest(repr(sorted(key.items())))
        return cls(choices_folder() / f"{name}.json", key)

    def read(self, limits: KernelLimits) -> dict[tuple[MatMulClass, int], Choice]:
        """Return what is kept; nothing, and a line in the log, where the record is damaged or of something else."""
        if not self.path.exists():
            return {}
        record = read_record(self.path) or {}
        try:
            if {name: record[name] for name in self.key} != self.key:
                raise ValueError("it is of another device")
            choices = list(read_choices(record))
            if not all(limits.allow(choice.variant) for choice in choices):
                raise ValueError("the device can't run what it says")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _log.warning("the choices of kernels in %s are left alone, as they can't be read: %r", self.path, error)
            return {}
        return {(choice.kind, choice.tokens): choice for choice in choices}

    def write(self, choices: Chosen) -> None:
        """Keep `choices` in place of what there was; where the disk refuses, that is said in the log."""
        try:
            write_record(self.path, {**self.key, "choices": [_to_json(choice) for choice in choices.values()]})
        except OSError as error:
            _log.warning("the choices of kernels are not kept and will be made again: %s", error)


def kept_records() -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Yield the records of all devices, None for one that is damaged."""
    for path in sorted(choices_folder().glob("*.json")):
        yield path, read_record(path)


def choices_folder() -> Path:
    """Return the folder with a record for each device; it may not exist."""
    return cache_folder() / "kernels"


def _to_json(choice: Choice) -> dict[str, Any]:
    return {
        **asdict(choice.kind),
        "tokens": choice.tokens,
        "variant": to_record(choice.variant),
        "predicted": choice.predicted,
        "measured": choice.measured,
        "default": to_record(choice.default),
        "default_measured": choice.default_measured,
    }


def read_choices(record: Mapping[str, Any]) -> Iterator[Choice]:
    """Yield the choices of a record. Raises KeyError, TypeError, ValueError or AttributeError for another content."""
    for each in record["choices"]:
        kind = MatMulClass(str(each["weights"]), int(each["rows"]), int(each["columns"]), str(each["number"]))
        if each["tokens"] not in TOKEN_COUNTS:
            raise ValueError(f"{each['tokens']} is no count of tokens")
        variant, default = from_record(each["variant"]), from_record(each["default"])
        if {variant.number == "int8", default.number == "int8"} != {kind.number == "int8"}:
            raise ValueError(f"{variant} is not for {kind}")
        predicted, measured, default_measured = (
            float(each[name]) for name in ("predicted", "measured", "default_measured")
        )
        yield Choice(
            kind,
            each["tokens"],
            variant,
            predicted,
            measured,
            default,
            default_measured,
        )


@cache
def kernels_version() -> str:
    """Return a digest of the matmul's WGSL: what was measured of other kernels says nothing of these."""
    digest = hashlib.sha256()
    for file in sorted(files("shaders").iterdir(), key=lambda file: file.name):
        if file.name.startswith(_KERNEL_FILES):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]
