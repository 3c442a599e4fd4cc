"""Settings for loading a model, and for the named states with which its engine starts."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rnn_engine.bounds import DEFAULT_DRAFT
from rnn_engine.errors import check_numbers
from rnn_engine_states.named.quota import DEFAULT_CAPACITY, Quota

if TYPE_CHECKING:
    from rnn_engine.model import LoraChoice


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The settings for loading a model: its tokenizer, template and LoRAs, the device, weight format and drafting."""

    device: str = "auto"  # auto, an index, a part of a name, or cpu
    tokenizer: str = "auto"  # auto, world, none, or the path of a tokenizer.json or a vocabulary
    chat_template: str = "auto"  # auto, world, or the path of a template; see `load_chat_template`
    weights: str | None = None
    """The weight format, as `WeightChoice.parse` reads it, or auto for the best format that fits.

    None keeps the blocks of a quantised file, and is f16 for any other file. On cpu, weights are f32, and every other
    choice is refused.
    """
    device_memory: int | None = None  # bytes that the device has, if that can't be found out
    v5_group_norm_epsilon: float | None = None  # of an RWKV-5 model that was not trained with 64e-5
    loras: Sequence[LoraChoice] = ()  # merged into the weights, one after another
    tune_seconds: float | None = 0.0
    """How many seconds to search for the fastest kernels if none are kept for the device. 0 uses fixed kernels; None
    searches if that is worthwhile (see `TuneOrder`)."""
    speculate: int = DEFAULT_DRAFT  # tokens of a draft at most; 0 = nothing is drafted
    reranker: Path | None = None  # the file of a reranker, which reads the states of the model; None: the demo's own

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is negative or not finite."""
        check_numbers(self)


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file with a state to load when an engine starts, and the name and id that the state gets."""

    path: Path
    name: str | None = None  # None = the name in the file, or else the file's own name without its ending
    id: uuid.UUID | None = None  # None = the id in the file, or else one computed from its values


@dataclass(frozen=True, slots=True)
class StateSettings:
    """The settings for an engine's named states: the files to load, the folders, and the limits on memory."""

    files: Sequence[StateFile] = ()
    default: str | None = None  # a name, or `none` for the fill values; None = as the files say
    folder: Path | None = None  # for persistent states
    file_folder: Path | None = None  # the only one from which requests may read files; None = that of persistent states
    capacity: int = DEFAULT_CAPACITY  # bytes of all states together
    quota: Quota = field(default_factory=Quota)  # of one client, if the server distinguishes its clients
    any_model: bool = False  # take states, too, whose files say that they were made for another model

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is negative or not finite."""
        check_numbers(self)
