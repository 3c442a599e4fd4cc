"""Read what PEFT's `adapter_config.json` says of how much of a LoRA is added."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rnn_engine.errors import ModelError
from rnn_engine.model.json_file import read_json
from rnn_engine.tensor_files.listing import show

_FILE: Final = "adapter_config.json"
_MODULE: Final = re.compile(r"[\w.]+")


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """How PEFT scales its pairs."""

    rank: int
    alpha: float
    rank_pattern: Mapping[str, float]  # the end of a module's name -> its rank
    alpha_pattern: Mapping[str, float]
    by_root: bool  # alpha is divided by the root of the rank

    def scale(self, module: str, rank: int, alpha: float | None) -> float:
        """Return by how much the product of a module's pair of rank `rank` is multiplied; `alpha` None is the config's.

        Raises ModelError where the config says another rank.
        """
        expected = _find(self.rank_pattern, module, self.rank)
        if rank != expected:
            raise ModelError(f"{show(module)} has a pair of rank {rank}; expected {expected:g}, as {_FILE} says")
        chosen = _find(self.alpha_pattern, module, self.alpha) if alpha is None else alpha
        return chosen / (math.sqrt(rank) if self.by_root else rank)


def read_peft_config(folder: Path) -> PeftConfig:
    """Read the folder's config. Raises ModelError where it is missing or asks for what is not merged."""
    path = folder / _FILE
    config = read_json(path)
    try:
        _check_kind(config)
        return PeftConfig(
            rank=int(_positive("r", config.get("r"))),
            alpha=_positive("lora_alpha", config.get("lora_alpha")),
            rank_pattern=_pattern("rank_pattern", config.get("rank_pattern")),
            alpha_pattern=_pattern("alpha_pattern", config.get("alpha_pattern")),
            by_root=config.get("use_rslora") is True,
        )
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def _check_kind(config: Mapping[str, Any]) -> None:
    if config.get("peft_type", "LORA") != "LORA":
        raise ModelError(f"peft_type {show(str(config['peft_type']))} is not merged; expected LORA")
    if config.get("use_dora"):
        raise ModelError("use_dora is not merged; expected false")


def _pattern(field: str, value: object) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ModelError(f"{field} is a {type(value).__name__}; expected numbers by module")
    for module in value:
        if not _MODULE.fullmatch(module):
            raise ModelError(f"{field} has the module {show(module)}; expected letters, digits, _ and . alone")
    return {module: _positive(f"{field} of {show(module)}", number) for module, number in value.items()}


def _positive(field: str, value: object) -> float:
    if type(value) not in (int, float) or not 0 < value < 1e9:  # type: ignore[operator]
        raise ModelError(f"{field} is {show(str(value))}; expected a number above 0")
    return float(value)  # type: ignore[arg-type]


def _find(pattern: Mapping[str, float], module: str, default: float) -> float:
    for end, number in pattern.items():
        if module == end or module.endswith(f".{end}"):
            return number
    return default
