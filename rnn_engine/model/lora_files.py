"""Open LoRAs: ai00's and BlinkDL's files, and PEFT's folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from rnn_engine.errors import ModelError
from rnn_engine.model.conventions import locate_tensors
from rnn_engine.model.fla_names import fla_name, is_transposed
from rnn_engine.model.layout import TensorSpec
from rnn_engine.model.lora import Change, Lora, LoraChoice, Pair, Plain, check_changes, pair_rank, refuse_unknown
from rnn_engine.model.peft_config import PeftConfig, read_peft_config
from rnn_engine.tensor_files.formats import open_source
from rnn_engine.tensor_files.listing import show
from rnn_engine.tensor_files.source import TensorInfo

Tensors = Mapping[str, TensorInfo]

_FILE_PAIR: Final = re.compile(r"(?P<module>.+)\.lora[._](?P<half>[01AB])")
_PEFT_PREFIX: Final = "base_model.model."
_PEFT_PAIR: Final = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<half>[AB])(\.default)?\.weight")
_OTHER_HALF: Final = {"0": "1", "1": "0", "A": "B", "B": "A"}  # ai00's two and those of all others
_PEFT_FILES: Final = ("adapter_model.safetensors", "adapter_model.bin")
_PROJECTION: Final = re.compile(r"blocks\.[0-9]+\.(att|ffn)\.(key|value|receptance|gate|output)\.weight")


@dataclass(frozen=True, slots=True)
class _Target:
    """A tensor of the model, as a LoRA sees it: by BlinkDL's name, and whether the LoRA has its two axes swapped."""

    name: str
    swapped: bool


def open_lora(choice: LoraChoice, specs: Sequence[TensorSpec], model: Tensors) -> Lora:
    """Open a LoRA for a model with these tensors, by BlinkDL's names. Raises ModelError where it does not fit."""
    folder = choice.path if choice.path.is_dir() else None
    config = None if folder is None else read_peft_config(folder)
    path = choice.path if folder is None else _peft_file(folder)
    source = open_source(path)
    try:
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


def _read_file(choice: LoraChoice, specs: Sequence[TensorSpec], tensors: Tensors, model: Tensors) -> dict[str, Change]:
    """Return the changes of ai00's or BlinkDL's file. A pair's name is its matrix's, without `.weight`.

    The choice's alpha is for the projections; that of any other tensor is 1.
    """
    targets: dict[str, _Target] = {}
    for spec in specs:
        for name in {spec.name, spec.ai00_name or spec.name} if spec.name in model else ():
            targets[name.removesuffix(".weight")] = _Target(spec.name, spec.ai00_swaps)
    changes = _read_pairs(_FILE_PAIR, tensors, targets, lambda _, name, rank: _alpha(choice, name) / rank)
    plain = {name: info for name, info in tensors.items() if not _FILE_PAIR.fullmatch(name)}
    for name, change in _read_plain(choice, specs, plain, model).items():
        _add(changes, name, change)
    return changes


def _read_plain(choice: LoraChoice, specs: Sequence[TensorSpec], plain: Tensors, model: Tensors) -> dict[str, Change]:
    """Return what plain tensors of ai00's or BlinkDL's file change: they replace vectors, and add to matrices."""
    width = TensorInfo(model["emb.weight"].shape, np.dtype(np.float16))
    located = locate_tensors(choice.path, specs, {"emb.weight": width, **plain})
    stored = {name: place for name, place in located.items() if place.name in plain}
    refuse_unknown([place.name for name, place in stored.items() if name not in model])
    vectors = {spec.name for spec in specs if len(spec.dims) == 1 or spec.dims == ("H", "N")}
    return {
        name: Plain(place.name, None if name in vectors else _alpha(choice, name), place.swapped)
        for name, place in stored.items()
    }


def _alpha(choice: LoraChoice, name: str) -> float:
    if not _PROJECTION.fullmatch(name):
        return 1.0
    if choice.alpha is None:
        raise ModelError("the file does not say its alpha; expected FILE:ALPHA, such as lora.safetensors:32")
    return choice.alpha


def _read_peft(
    config: PeftConfig, alpha: float | None, specs: Sequence[TensorSpec], tensors: Tensors, model: Tensors
) -> dict[str, Change]:
    """Return the changes of PEFT's file: pairs of modules, and whole tensors, which replace the model's."""
    targets: dict[str, _Target] = {}
    for spec in specs:
        if spec.name in model:
            targets[spec.name] = _Target(spec.name, swapped=False)
            targets[fla_name(spec.name)] = _Target(spec.name, is_transposed(spec.name))
    modules = {name.removesuffix(".weight"): target for name, target in targets.items()}
    changes = _read_pairs(_PEFT_PAIR, tensors, modules, lambda module, _, rank: config.scale(module, rank, alpha))
    whole = {name: name.removeprefix(_PEFT_PREFIX) for name in tensors if not _PEFT_PAIR.fullmatch(name)}
    refuse_unknown([name for name, stored in whole.items() if stored not in targets])
    for name, stored in whole.items():
        _add(changes, targets[stored].name, Plain(name, None, targets[stored].swapped))
    return changes


def _read_pairs(
    pattern: re.Pattern[str],
    tensors: Tensors,
    targets: Mapping[str, _Target],
    scale: Callable[[str, str, int], float],  # module, BlinkDL's name, rank -> by how much the product is multiplied
) -> dict[str, Change]:
    """Return the low-rank pairs whose names match `pattern`, by the tensor that each changes."""
    matches = [match for name in tensors if (match := pattern.fullmatch(name))]
    refuse_unknown([match.string for match in matches if match["module"] not in targets])
    changes: dict[str, Change] = {}
    for match in matches:
        down, half, target = match.string, match["half"], targets[match["module"]]
        up = f"{down[: match.start('half')]}{_OTHER_HALF[half]}{down[match.end('half') :]}"
        if up not in tensors:
            raise ModelError(f"{show(down)} has no {show(up)}; expected both of a pair")
        if half in "1B":
            continue
        is_ai00 = half == "0"
        rank = pair_rank(down, tensors[down], 1 if is_ai00 else 0)
        transposes = target.swapped and (is_ai00 or pattern is _PEFT_PAIR)
        _add(changes, target.name, Pair(down, up, scale(match["module"], target.name, rank), is_ai00, transposes))
    return changes


def _add(changes: dict[str, Change], name: str, change: Change) -> None:
    if name in changes:
        raise ModelError(f"two changes of {name}; expected one pair or one whole tensor")
    changes[name] = change


def _peft_file(folder: Path) -> Path:
    for name in _PEFT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise ModelError(f"{folder} has neither {' nor '.join(_PEFT_FILES)}; expected a folder that PEFT saved")
