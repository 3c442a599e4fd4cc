"""How a model is read and put on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rnn_engine.checks import check_finite
from rnn_engine.model import LoraChoice
from rnn_engine.requests import DEFAULT_DRAFT


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What of a model's files is taken, where and in which form its weights are kept, and how texts are drafted."""

    device: str = "auto"  # auto, an index, a part of a name, or cpu
    tokenizer: str = "auto"  # auto, world, none, or the path of a tokenizer.json or a vocabulary
    chat_template: str = "auto"  # auto, world, or the path of a template; see `load_chat_template`
    weights: str | None = None
    """A choice as `WeightChoice.parse` reads it, or auto for the best format that fits; None keeps the blocks of a
    quantised file, and is f16 for others. On cpu they are f32, and a choice that asks for anything else is refused."""
    device_memory: int | None = None  # bytes that the device has, where that can't be found out
    v5_group_norm_epsilon: float | None = None  # of an RWKV-5 that was not trained with 64e-5
    loras: Sequence[LoraChoice] = ()  # are merged into the weights, one after another
    tune_seconds: float | None = 0.0
    """For how long the fastest kernels may be searched for where none are kept for the device; 0 takes fixed ones, and
    None searches where it pays (see `TuneOrder`)."""
    speculate: int = DEFAULT_DRAFT  # tokens of a draft at most; 0 = nothing is drafted

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is none."""
        check_finite("v5_group_norm_epsilon", self.v5_group_norm_epsilon)
        check_finite("tune_seconds", self.tune_seconds)
