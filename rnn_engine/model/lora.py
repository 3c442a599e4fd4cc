"""Open LoRAs, small files that change a model's weights, and merge them into the model's tensors at load.

A low-rank pair adds to a matrix W [out, in]: W += alpha / R * B A, with A [R, in] and B [out, R]. PiSSA's pairs at the
start of training are subtracted. The shards of a DiSHA or Bone add to parts of W. A plain tensor replaces the model's
own, or is added to it. PEFT does not do here: it needs torch, and a whole model in memory.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import InvalidRequestError, ModelError
from rnn_engine.files import atomic_folder, output_file
from rnn_engine.model.conventions import locate_tensors
from rnn_engine.model.fingerprint import fingerprint
from rnn_engine.model.huggingface import fla_name, is_transposed, read_json
from rnn_engine.model.layout import TensorSpec, check_dtypes, squeeze
from rnn_engine.tensor_files.formats import open_source
from rnn_engine.tensor_files.pth_file import write_pth
from rnn_engine.tensor_files.safetensors_file import SafetensorsFile, write_safetensors
from rnn_engine.tensor_files.source import TensorEntry, TensorInfo, TensorSource, count, show, show_all
from rnn_engine.types import F32

_FILE: Final = "adapter_config.json"
_ALPHA: Final = "alpha"  # in the metadata of safetensors
BASE: Final = "rnn_engine_model"
"""The key in the metadata of safetensors for the fingerprint of the model for which a LoRA was trained."""
_MODULE: Final = re.compile(r"[\w.]+")


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """The settings in a PEFT folder's adapter_config.json for the scale of each low-rank pair."""

    rank: int
    alpha: float
    rank_pattern: Mapping[str, float]  # the end of a module's name -> its rank
    alpha_pattern: Mapping[str, float]
    by_root: bool  # alpha is divided by the root of the rank

    def scale(self, module: str, rank: int, alpha: float | None) -> float:
        """Return the factor by which the low-rank product for a module is multiplied before it is added.

        `rank` is that of the stored pair. `alpha` replaces the config's if it is not None. Raises ModelError if the
        config sets another rank for the module.
        """
        expected = _find(self.rank_pattern, module, self.rank)
        if rank != expected:
            raise ModelError(f"{show(module)} has a pair of rank {rank}; expected {expected:g}, as {_FILE} says")
        chosen = _find(self.alpha_pattern, module, self.alpha) if alpha is None else alpha
        return chosen / (math.sqrt(rank) if self.by_root else rank)


def read_peft_config(folder: Path) -> PeftConfig:
    """Read a PEFT folder's adapter_config.json. Raises ModelError if it is damaged or can't be merged."""
    path = folder / _FILE
    config = read_json(path)
    try:
        if config.get("peft_type", "LORA") != "LORA":
            raise ModelError(f"peft_type {show(str(config['peft_type']))} can't be merged; expected LORA")
        if config.get("use_dora"):
            raise ModelError("use_dora is true, and DoRA can't be merged; expected false")
        return PeftConfig(
            rank=int(_positive("r", config.get("r"))),
            alpha=_positive("lora_alpha", config.get("lora_alpha")),
            rank_pattern=_pattern("rank_pattern", config.get("rank_pattern")),
            alpha_pattern=_pattern("alpha_pattern", config.get("alpha_pattern")),
            by_root=config.get("use_rslora") is True,
        )
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def _pattern(field: str, value: object) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ModelError(f"{field} is a {type(value).__name__}; expected an object from modules to numbers")
    for module in value:
        if not _MODULE.fullmatch(module):
            raise ModelError(f"{field} has the module {show(module)}; expected only letters, digits, _ and .")
    return {module: _positive(f"{field} of {show(module)}", number) for module, number in value.items()}


def _positive(field: str, value: object) -> float:
    if type(value) not in (int, float) or not 0 < value < 1e9:  # type: ignore[operator]
        raise ModelError(f"{field} is {show(str(value))}; expected a number above 0")
    return float(value)  # type: ignore[arg-type]


def _parse_alpha(text: str) -> float:
    """Return the alpha in the metadata of a file. Raises ModelError unless it is a number above 0."""
    try:
        return _positive(_ALPHA, float(text))
    except ValueError:
        raise ModelError(f"the metadata's {_ALPHA} is {show(text)}; expected a number above 0") from None


def _find(pattern: Mapping[str, float], module: str, default: float) -> float:
    for end, number in pattern.items():
        if module == end or module.endswith(f".{end}"):
            return number
    return default


Read: TypeAlias = Callable[[str], NDArray[Any]]

_ROWS: Final = 1024  # of a matrix, changed at a time


@dataclass(frozen=True, slots=True)
class LoraChoice:
    """A LoRA to merge, of ai00, BlinkDL or PEFT, and its alpha; None is that of PEFT's config or in the file."""

    path: Path
    alpha: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `FILE` or `FILE:ALPHA`; text after the last colon that is no number belongs to FILE.

        A text that is the path of an existing file or folder is FILE, even if it ends in a colon and a number.
        Raises InvalidRequestError if FILE is empty or ALPHA is not finite.
        """
        path, colon, number = text.rpartition(":")
        try:
            alpha = float(number)
        except ValueError:
            return cls(Path(text))
        if not colon or Path(text).exists():
            return cls(Path(text))
        if not path or not math.isfinite(alpha):
            raise InvalidRequestError("lora", text, "FILE or FILE:ALPHA with a finite number")
        return cls(Path(path), alpha)


@dataclass(frozen=True, slots=True)
class Pair:
    """A LoRA's change of one matrix: `scale` times the product of two of the LoRA's tensors is added."""

    down: str  # A [R, in]
    up: str  # B [out, R]
    scale: float  # alpha / R
    down_swapped: bool = False  # A is stored as [in, R]
    transposes: bool = False  # the product is for the matrix [in, out]

    def halves(self, read: Read) -> tuple[F32, F32]:
        """Return A [R, in], and B [out, R] times `scale`, of the matrix as the model has it."""
        down, up = read(self.down).astype(np.float32), read(self.up).astype(np.float32)
        if self.down_swapped:
            down = down.T
        if self.transposes:
            down, up = up.T, down.T
        return down, np.float32(self.scale) * up

    def merge(self, weight: F32, read: Read) -> None:
        down, up = self.halves(read)
        for start in range(0, len(weight), _ROWS):
            rows = slice(start, start + _ROWS)
            weight[rows] += up[rows] @ down


@dataclass(frozen=True, slots=True)
class Plain:
    """A LoRA's change of one tensor by a full-sized tensor, which is added `scale` times or replaces the model's."""

    name: str
    scale: float | None = None  # None replaces
    swapped: bool = False  # in its last two dimensions

    def merge(self, weight: F32, read: Read) -> None:
        stored = read(self.name)
        values = (stored.swapaxes(-1, -2) if self.swapped else stored).reshape(weight.shape)
        if self.scale is None:
            weight[...] = values
        else:
            weight += np.float32(self.scale) * values.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Shards:
    """A change of one matrix W [out, in] by a tensor of R rows or blocks, of RWKV-PEFT's DiSHA or of its older Bone.

    A matrix D [R, out] is added to every R columns of W: W[:, j R + i] += D[i] (DiSHA "bone"). Blocks d [in / R, R, R]
    change W by blocks [R, R]: W_ab += W_ab d_b + d_b (DiSHA "bat", Bone).
    """

    name: str
    scale: float | None = None

    def merge(self, weight: F32, read: Read) -> None:
        shards = read(self.name).astype(np.float32)
        rank = shards.shape[-2]
        if shards.ndim == 2:
            for start in range(0, weight.shape[1], rank):
                columns = weight[:, start : start + rank]
                columns += shards[: columns.shape[1]].T
            return
        for start in range(0, len(weight), rank):
            rows = weight[start : start + rank]
            blocks = rows.reshape(rank, -1, rank).swapaxes(0, 1)  # [in / R, R, R]
            rows += (blocks @ shards + shards).swapaxes(0, 1).reshape(rows.shape)


Change: TypeAlias = Pair | Plain | Shards


class Lora:
    """An open LoRA, which merges its changes into tensors of a model when they are loaded.

    It owns `source`, the LoRA's file: `close` closes it.
    """

    def __init__(self, choice: LoraChoice, source: TensorSource, changes: Mapping[str, Change]) -> None:
        """Create a LoRA from its open file `source`; `changes` maps BlinkDL's names of tensors to their changes."""
        self.choice = choice
        self._source = source
        self._changes = changes

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the effect: a digest of tensors and scales. Reads the whole file when first used."""
        scales = " ".join(f"{name}={change.scale}" for name, change in sorted(self._changes.items()))
        return f"{fingerprint('lora', self._source.tensors, self._source.read)} {scales}"

    def changes(self, name: str) -> bool:
        return name in self._changes

    def merge(self, name: str, weight: F32) -> None:
        """Change `weight`, the tensor `name`, in place. Raises ModelError as `read` does, or if it is not finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            self._changes[name].merge(weight, self._source.read)
        if not np.isfinite(weight).all():
            raise ModelError(f"{self.choice.path}: {name} is not finite once this LoRA is merged")

    def pairs(self) -> dict[str, tuple[F32, F32]]:
        """Return A [R, in], and B [out, R] times alpha / R, for each matrix that the LoRA changes.

        Raises ModelError as `read` does, or if it changes anything but projections by low-rank pairs.
        """
        found: dict[str, tuple[F32, F32]] = {}
        for name, change in self._changes.items():
            if not isinstance(change, Pair) or projection(name) is None:
                path = self.choice.path
                raise ModelError(
                    f"{path}: it changes {name}; expected only pairs for projections, or --lora to merge it"
                )
            found[name] = change.halves(self._source.read)
        return found

    @property
    def base(self) -> str | None:
        """The fingerprint of the model for which it was trained, if the file has it."""
        metadata = self._source.metadata if isinstance(self._source, SafetensorsFile) else {}
        return metadata.get(BASE)

    def close(self) -> None:
        """Close the LoRA's file. Idempotent."""
        self._source.close()


def check_changes(
    changes: Mapping[str, Change], stored: Mapping[str, TensorInfo], model: Mapping[str, TensorInfo]
) -> None:
    """Raise ModelError unless there are changes, and `stored` tensors that fit those of `model`."""
    if not changes:
        raise ModelError("it has no tensors; expected low-rank pairs such as blocks.0.att.key.lora.0 and .lora.1")
    used = [
        name
        for change in changes.values()
        for name in ((change.down, change.up) if isinstance(change, Pair) else (change.name,))
    ]
    check_dtypes({name: stored[name] for name in used})
    for name, change in changes.items():
        match change:
            case Pair():
                _check_pair(name, change, stored, model[name])
            case Shards():
                _check_shards(name, change, stored[change.name], model[name])
            case Plain():
                _check_plain(name, change, stored[change.name], model[name])


def projection(name: str) -> str | None:
    """Return which matrix of a layer `name` is, such as att.key; None if it is none of its projections."""
    match = _PROJECTION.fullmatch(name)
    return None if match is None else match[1]


def shifts_and_gates(names: Collection[str]) -> list[str]:
    """Return the vectors of RWKV-6 or 7 of token shifts, and those to which an adapter of a time mix adds."""
    return [
        name
        for name in names
        if _SHIFT_OR_GATE.fullmatch(name) and (not name.endswith(".time_decay") or f"{name}_w1" in names)
    ]


def refuse_unknown(names: Sequence[str]) -> None:
    """Raise ModelError if there are `names`: tensors of a LoRA for which the model has no tensor."""
    if names:
        raise ModelError(f"{count(names, 'tensor')} that the model has no place for: {show_all(sorted(names))}")


def pair_rank(name: str, info: TensorInfo, axis: int) -> int:
    """Return the rank of a pair, a matrix's size along `axis`. Raises ModelError if it is no matrix, or empty."""
    if len(info.shape) != 2 or 0 in info.shape:
        raise ModelError(f"{show(name)} is {list(info.shape)}; expected a matrix")
    return info.shape[axis]


def _check_pair(name: str, pair: Pair, stored: Mapping[str, TensorInfo], target: TensorInfo) -> None:
    down, up = stored[pair.down].shape, stored[pair.up].shape
    if len(target.shape) != 2:
        raise ModelError(f"{show(pair.down)} is for {name}, which is {list(target.shape)}; expected a matrix")
    outer, inner = reversed(target.shape) if pair.transposes else target.shape
    rank = down[-1] if pair.down_swapped else down[0]
    if down != ((inner, rank) if pair.down_swapped else (rank, inner)) or up != (outer, rank):
        wanted = f"[{inner}, R]" if pair.down_swapped else f"[R, {inner}]"
        raise ModelError(
            f"{show(pair.down)} is {list(down)} and {show(pair.up)} is {list(up)}; expected {wanted} and "
            f"[{outer}, R] with one rank R"
        )


def _check_shards(name: str, shards: Shards, info: TensorInfo, target: TensorInfo) -> None:
    if len(target.shape) != 2:
        raise ModelError(f"{show(shards.name)} is for {name}, which is {list(target.shape)}; expected a matrix")
    outer, inner = target.shape
    match info.shape:
        case (rank, size) if 0 < rank <= inner and size == outer:
            return
        case (number, rank, size) if 0 < rank == size and number * rank == inner and outer % rank == 0:
            return
    raise ModelError(
        f"{show(shards.name)} is {list(info.shape)}; expected [R, {outer}], or [{inner} / R, R, R] with an R that "
        f"divides {inner} and {outer}"
    )


def _check_plain(name: str, plain: Plain, info: TensorInfo, target: TensorInfo) -> None:
    shape = squeeze(info, len(target.shape)).shape
    oriented = (*shape[:-2], shape[-1], shape[-2]) if plain.swapped and len(shape) >= 2 else shape
    if oriented != target.shape:
        raise ModelError(f"{show(plain.name)} is {list(info.shape)}; expected {list(target.shape)}, as {name} is")


# Open LoRAs: ai00's and BlinkDL's files, and PEFT's folders.

Tensors = Mapping[str, TensorInfo]

_FILE_PAIR: Final = re.compile(r"(?P<module>.+)\.(?P<init>init_)?lora[._](?P<half>[01AB])")
_SHARDS: Final = re.compile(r"(?P<module>.+)\.(disha|bone)")
_PEFT_PREFIX: Final = "base_model.model."
_PEFT_PAIR: Final = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<half>[AB])(\.default)?\.weight")
_OTHER_HALF: Final = {"0": "1", "1": "0", "A": "B", "B": "A"}  # ai00's two halves, and those of all others
_PEFT_FILES: Final = ("adapter_model.safetensors", "adapter_model.bin")
_PROJECTION: Final = re.compile(r"blocks\.[0-9]+\.((?:att|ffn)\.(?:key|value|receptance|gate|output))\.weight")

_SHIFT_OR_GATE: Final = re.compile(
    r"blocks\.(?!0\.att\.v0)[0-9]+\.(att\.(x_[rwkvag]|[wav]0|time_maa_[xwkvrg]|time_decay)|ffn\.(x_k|time_maa_[kr]))"
)  # of RWKV-7, whose first layer does not use its v0, and of RWKV-6


@dataclass(frozen=True, slots=True)
class _Target:
    """A tensor that a LoRA may change, by BlinkDL's name; `swapped` if the LoRA has its last axes swapped."""

    name: str
    swapped: bool


def is_lora(path: Path) -> bool:
    """Return True if `path` is a PEFT folder, or a file of tensors with low-rank pairs."""
    if path.is_dir():
        return (path / _FILE).is_file()
    try:
        source = open_source(path)
    except ModelError:
        return False
    with closing(source):
        return any(map(_FILE_PAIR.fullmatch, source.tensors))


def open_lora(choice: LoraChoice, specs: Sequence[TensorSpec], model: Tensors) -> Lora:
    """Open a LoRA, and check it by the `specs` and tensors of `model`. Raises ModelError if it does not fit."""
    folder = choice.path if choice.path.is_dir() else None
    config = None if folder is None else read_peft_config(folder)
    path = choice.path if folder is None else _peft_file(folder)
    source = open_source(path)
    try:
        if choice.alpha is None and isinstance(source, SafetensorsFile) and _ALPHA in source.metadata:
            choice = replace(choice, alpha=_parse_alpha(source.metadata[_ALPHA]))
        if config is None:
            changes = _read_file(choice, specs, source.tensors, model)
        else:
            changes = _read_peft(config, choice.alpha, specs, source.tensors, model)
        check_changes(changes, source.tensors, model)
        return Lora(choice, source, changes)
    except ModelError as error:
        source.close()
        raise ModelError(f"{path}: {error}") from error
    except BaseException:
        source.close()
        raise


def is_peft_folder(path: Path) -> bool:
    """Return True if `write_lora` writes a folder of PEFT for a name: one without an ending."""
    return not path.suffix


def write_lora(path: Path, tensors: Mapping[str, F32], alpha: float, metadata: Mapping[str, str]) -> None:
    """Write low-rank pairs, atomically: to safetensors with the metadata, to a .pth as RWKV-PEFT does, or to a folder.

    Vectors [D] beside them become [1, 1, D], as in BlinkDL's files. A folder of PEFT is for RWKV-7 of
    flash-linear-attention, and has no vectors.
    A .pth does not hold `alpha`; who loads it gives it to `LoraChoice`. Raises OSError.
    """
    entries = [
        TensorEntry(name, TensorInfo(values.shape, values.dtype), partial(np.asarray, values))
        for name, tensor in sorted(tensors.items())
        for values in (tensor if tensor.ndim > 1 else tensor.reshape(1, 1, -1),)
    ]
    if is_peft_folder(path):
        with atomic_folder(path, "output") as folder:
            _write_peft(folder, entries, alpha, metadata)
        return
    with output_file(path) as file:
        if path.suffix == ".pth":
            write_pth(file, entries)
        else:
            write_safetensors(file, entries, {**metadata, _ALPHA: str(alpha)})


def _write_peft(folder: Path, entries: Sequence[TensorEntry], alpha: float, metadata: Mapping[str, str]) -> None:
    modules, named = set[str](), list[TensorEntry]()
    for entry in entries:
        matrix, _, half = entry.name.rpartition(".")
        module = fla_name(f"{matrix}.weight").removesuffix(".weight")
        modules.add(".".join(module.split(".")[-2:]))
        named.append(replace(entry, name=f"{_PEFT_PREFIX}{module}.{half}.weight"))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": entries[0].info.shape[0],  # of an A
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(modules),
        "bias": "none",
    }
    (folder / _FILE).write_text(json.dumps(config, indent=2))
    with output_file(folder / _PEFT_FILES[0]) as file:
        write_safetensors(file, named, {"format": "pt", **metadata})


def _read_file(choice: LoraChoice, specs: Sequence[TensorSpec], tensors: Tensors, model: Tensors) -> dict[str, Change]:
    """Map BlinkDL's names of a model's tensors to their changes in a file of ai00, BlinkDL or RWKV-PEFT.

    A low-rank pair is named after the matrix that it changes, without `.weight`. The alpha of `choice` applies to the
    projections; the alpha of any other tensor is 1. PiSSA's initial pairs have the scale -1. In a file with shards,
    other matrices replace the model's.
    """
    targets: dict[str, _Target] = {}
    for spec in specs:
        for name in {spec.name, spec.ai00_name or spec.name} if spec.name in model else ():
            targets[name.removesuffix(".weight")] = _Target(spec.name, spec.ai00_swaps)

    def scale(match: re.Match[str], name: str, rank: int) -> float:
        return -1.0 if match["init"] else _alpha(choice, name) / rank

    changes = _read_pairs(_FILE_PAIR, tensors, targets, scale)
    shards = {name: match["module"] for name in tensors if (match := _SHARDS.fullmatch(name))}
    refuse_unknown([name for name, module in shards.items() if module not in targets])
    for name, module in shards.items():
        _add(changes, targets[module].name, Shards(name))
    plain = {name: info for name, info in tensors.items() if not _FILE_PAIR.fullmatch(name) and name not in shards}
    for name, change in _read_plain(choice, specs, plain, model, replaces=len(shards) > 0).items():
        _add(changes, name, change)
    return changes


def _read_plain(
    choice: LoraChoice, specs: Sequence[TensorSpec], plain: Tensors, model: Tensors, *, replaces: bool
) -> dict[str, Change]:
    """Map names to full-sized changes: a vector replaces the model's; a matrix is added to it, unless it `replaces`."""
    width = TensorInfo(model["emb.weight"].shape, np.dtype(np.float16))
    located = locate_tensors(choice.path, specs, {"emb.weight": width, **plain})
    stored = {name: place for name, place in located.items() if place.name in plain}
    refuse_unknown([place.name for name, place in stored.items() if name not in model])
    vectors = {spec.name for spec in specs if len(spec.dims) == 1 or spec.dims == ("H", "N")}
    return {
        name: Plain(place.name, None if replaces or name in vectors else _alpha(choice, name), place.swapped)
        for name, place in stored.items()
    }


def _alpha(choice: LoraChoice, name: str) -> float:
    if projection(name) is None:
        return 1.0
    if choice.alpha is None:
        raise ModelError("the file does not contain its alpha; expected FILE:ALPHA, such as lora.safetensors:32")
    return choice.alpha


def _read_peft(
    config: PeftConfig, alpha: float | None, specs: Sequence[TensorSpec], tensors: Tensors, model: Tensors
) -> dict[str, Change]:
    """Map BlinkDL's names to the changes in PEFT's file: low-rank pairs, and whole tensors that replace the model's."""
    targets: dict[str, _Target] = {}
    for spec in specs:
        if spec.name in model:
            targets[spec.name] = _Target(spec.name, swapped=False)
            targets[fla_name(spec.name)] = _Target(spec.name, is_transposed(spec.name))
    modules = {name.removesuffix(".weight"): target for name, target in targets.items()}
    changes = _read_pairs(
        _PEFT_PAIR, tensors, modules, lambda match, _, rank: config.scale(match["module"], rank, alpha)
    )
    whole = {name: name.removeprefix(_PEFT_PREFIX) for name in tensors if not _PEFT_PAIR.fullmatch(name)}
    refuse_unknown([name for name, stored in whole.items() if stored not in targets])
    for name, stored in whole.items():
        _add(changes, targets[stored].name, Plain(name, None, targets[stored].swapped))
    return changes


def _read_pairs(
    pattern: re.Pattern[str],
    tensors: Tensors,
    targets: Mapping[str, _Target],
    scale: Callable[[re.Match[str], str, int], float],  # the match, BlinkDL's name, rank -> the product's factor
) -> dict[str, Change]:
    """Map the model's tensors to the pairs whose names match `pattern`. Raises ModelError for a half or unknown one."""
    matches = [match for name in tensors if (match := pattern.fullmatch(name))]
    refuse_unknown([match.string for match in matches if match["module"] not in targets])
    changes: dict[str, Change] = {}
    for match in matches:
        down, half, target = match.string, match["half"], targets[match["module"]]
        up = f"{down[: match.start('half')]}{_OTHER_HALF[half]}{down[match.end('half') :]}"
        if up not in tensors:
            raise ModelError(f"{show(down)} has no {show(up)}; expected both tensors of a pair")
        if half in "1B":
            continue
        is_ai00 = half == "0"
        rank = pair_rank(down, tensors[down], 1 if is_ai00 else 0)
        transposes = target.swapped and (is_ai00 or pattern is _PEFT_PAIR)
        _add(changes, target.name, Pair(down, up, scale(match, target.name, rank), is_ai00, transposes))
    return changes


def _add(changes: dict[str, Change], name: str, change: Change) -> None:
    if name in changes:
        raise ModelError(f"it changes {name} twice; expected one pair or one whole tensor")
    changes[name] = change


def _peft_file(folder: Path) -> Path:
    for name in _PEFT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise ModelError(f"{folder} has neither {' nor '.join(_PEFT_FILES)}; expected a folder that PEFT saved")
