"""Choose the fastest matmul kernels on a device: search at the first load, and record the choices for later loads."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from rnn_engine.bounds import TUNE_SECONDS, Settings
from rnn_engine.files import cache_folder, read_record, short_digest, write_record
from rnn_engine.forward import GpuRunner, Progress
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.tuner import Choice, Chosen, KernelTuner
from rnn_engine.forward.tuning import TOKEN_COUNTS, MatMulClass
from rnn_engine.forward.variants import KernelLimits
from rnn_engine.gpu import Device, measure_subgroup_size

_LEAST_BYTES: Final = 64 << 20  # of weights, from which on the choice of kernels matters
_RECIPE: Final = 3  # increased whenever the form of a record changes

_KERNEL_FILES: Final = (
    *("matmul", "products_", "tiles_", "inputs_", "stored_inputs", "one_format", "packed_", "weights_", "halves"),
    *("segment", "activations", "number_", "eight", "broadcast", "batch"),
    *("block_", "part_scales", "codebook4", "nibbles", "levels_", "split_codes", "five_bits"),
)  # the beginnings of the names of the matmuls' WGSL files and of those that they include

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TuneOrder(Settings):
    """The settings of the search for the fastest kernels when a model is loaded."""

    seconds: float | None = 0.0  # 0: nothing is read or recorded; None: `TUNE_SECONDS` for a large model on hardware
    anew: bool = False  # recorded choices are searched for again, too
    half: bool = False  # f16 products are allowed, too
    on_found: Callable[[Chosen], None] = lambda _: None  # called with the choices that were found

    def budget(self, device: Device, weight_bytes: int) -> float:
        if self.seconds is not None:
            return self.seconds
        return 0.0 if device.info.is_software or weight_bytes < _LEAST_BYTES else TUNE_SECONDS


FIXED: Final = TuneOrder()


def kernel_limits(device: Device) -> KernelLimits:
    """Return the limits of `device` for kernels: threads and memory of a workgroup, subgroup broadcasts and f16."""
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
    """Set a model's matmul kernels to the fastest that are recorded for its device, after a search if `order` allows.

    `matmuls` belong to `runner`, which must not have run any step yet. Newly found choices are recorded and passed to
    `order.on_found`. With `order.seconds` 0 the function does nothing.
    """
    if order.seconds == 0:
        return
    kept = KeptChoices.of(runner.device)
    known = kept.read(limits)
    seconds = order.budget(runner.device, runner.weight_bytes)
    if seconds > 0:
        tuner = KernelTuner(runner, matmuls, limits, half=order.half)
        searched = set() if order.anew else {kind for kind, _ in known}
        found = tuner.search(seconds, progress, known=searched)
        known = {**known, **found}
        if found:
            kept.write(known)
            order.on_found(found)
    matmuls.tuning = replace(
        matmuls.tuning, found={key: choice.variant for key, choice in known.items() if choice.gain > 1}
    )


@dataclass(frozen=True, slots=True)
class KeptChoices:
    """The file that records the fastest matmul kernels found for one device, driver and version of the kernels."""

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
        """Return recorded choices; none, with a line in the log, if the file is damaged or of another device."""
        if not self.path.exists():
            return {}
        record = read_record(self.path) or {}
        try:
            if {name: record[name] for name in self.key} != self.key:
                raise ValueError("they are for another device")
            choices = read_choices(record)
            if not all(limits.allow(choice.variant) for choice in choices):
                raise ValueError("the device can't run some of them")
        except (KeyError, ValueError) as error:
            _log.warning("the choices of kernels in %s are ignored, since they can't be used: %r", self.path, error)
            return {}
        return {(choice.kind, choice.tokens): choice for choice in choices}

    def write(self, choices: Chosen) -> None:
        """Replace the recorded choices of kernels by `choices`. A failure to write the file is only logged."""
        try:
            write_record(self.path, {**self.key, "choices": list(map(asdict, choices.values()))})
        except OSError as error:
            _log.warning("the choices of kernels can't be saved, so the next load makes them again: %s", error)


def choices_folder() -> Path:
    """Return the folder with a file of recorded kernel choices for each device; it may not exist."""
    return cache_folder() / "kernels"


def read_choices(record: Mapping[str, Any]) -> list[Choice]:
    """Return the choices in a file's content. Raises KeyError or ValueError."""
    from pydantic import TypeAdapter  # here, since its import takes 0.3 s, and not all loads read a record

    choices = TypeAdapter(list[Choice]).validate_python(record["choices"])
    for each in choices:
        if each.tokens not in TOKEN_COUNTS:
            raise ValueError(f"{each.tokens} is not one of the token counts")
        if {each.variant.number == "int8", each.default.number == "int8"} != {each.kind.number == "int8"}:
            raise ValueError(f"{each.variant} is not for {each.kind}")
    return choices


@cache
def kernels_version() -> str:
    """Return a digest of the matmul's WGSL files. Speeds measured with other files do not apply to these."""
    return version_of(kernel_texts())


def kernel_texts() -> dict[str, str]:
    """Return the texts of the matmul's WGSL files, by file name."""
    kernels = (file for file in files("rnn_engine_shaders").iterdir() if file.name.startswith(_KERNEL_FILES))
    return {file.name: file.read_text("utf-8") for file in kernels}


def version_of(texts: Mapping[str, str]) -> str:
    """Return a digest of WGSL files that ignores comments, blank lines and indentation."""
    digest = hashlib.sha256()
    for name, text in sorted(texts.items()):
        lines = (line.partition("//")[0].strip() for line in text.splitlines())
        digest.update("\n".join([name, *filter(None, lines), ""]).encode())
    return digest.hexdigest()[:16]
