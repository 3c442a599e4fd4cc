"""Settings for loading a model, and the store of the named states with which its engine starts."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rnn_engine.errors import StateError, check_finite
from rnn_engine.model import LoraChoice, OpenModel
from rnn_engine.requests import DEFAULT_DRAFT
from rnn_engine.types import ModelShape
from states.files.exchange import StateFiles
from states.files.reading import LoadedState, is_time_state, state_from_tuned
from states.frozen import NO_INITIAL_STATE
from states.named.entry import Quota
from states.named.persistence import SavedStates
from states.named.store import DEFAULT_CAPACITY, LocalStateStore, StateStore
from states.shared.opening import OpenStore


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The settings for loading a model: its tokenizer, template and LoRAs, the device, weight format and drafting."""

    device: str = "auto"  # auto, an index, a part of a name, or cpu
    tokenizer: str = "auto"  # auto, world, none, or the path of a tokenizer.json or a vocabulary
    chat_template: str = "auto"  # auto, world, or the path of a template; see `load_chat_template`
    weights: str | None = None
    """A choice as `WeightChoice.parse` reads it, or auto for the best format that fits. None keeps the blocks of a
    quantised file, and is f16 for any other file. On cpu, weights are f32, and every other choice is refused."""
    device_memory: int | None = None  # bytes that the device has, if that can't be found out
    v5_group_norm_epsilon: float | None = None  # of an RWKV-5 model that was not trained with 64e-5
    loras: Sequence[LoraChoice] = ()  # merged into the weights, one after another
    tune_seconds: float | None = 0.0
    """How many seconds to search for the fastest kernels if none are kept for the device. 0 uses fixed kernels; None
    searches if that is worthwhile (see `TuneOrder`)."""
    speculate: int = DEFAULT_DRAFT  # tokens of a draft at most; 0 = nothing is drafted

    def __post_init__(self) -> None:
        """Raise InvalidRequestError if `v5_group_norm_epsilon` or `tune_seconds` is negative or not finite."""
        check_finite("v5_group_norm_epsilon", self.v5_group_norm_epsilon)
        check_finite("tune_seconds", self.tune_seconds)


# A model's named states as an engine begins with them: the operator's files, the model's own tensors, and the
# persistent states of earlier runs.

OWN_STATE = "model"
"""The name of the state that a model's own file contains."""


@dataclass(frozen=True, slots=True)
class StateFile:
    """A state file to load at the start, in any format that `states.files.reading` reads, and its name and id."""

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


def open_states(model: OpenModel, settings: StateSettings) -> LocalStateStore:
    """Create the store of named states for an open model, and load the states that `settings` name.

    It also gets the model's own tuned state, if there is one, and the persistent states of earlier runs. Raises
    StateError if a file can't be read or does not fit the model.
    """
    states = make_state_store(
        model.shape,
        model.fingerprint,
        settings.folder,
        settings.capacity,
        settings.quota,
        file_folder=settings.file_folder,
    )
    own = {name: model.tensor(name) for name in model.names if is_time_state(name)}
    if own:
        state = state_from_tuned(own, model.shape, "value_key", model.path.name)
        states.add(LoadedState("tuned", state), OWN_STATE, model.path.name)
        states.set_default(OWN_STATE)
    for file in settings.files:
        states.add_file(file.path, file.name, file.id)
    states.load_saved()
    if settings.default is not None:
        states.set_default(None if settings.default == NO_INITIAL_STATE else settings.default)
    return states


def share_names(store: OpenStore | None, own: LocalStateStore, fingerprint: str, settings: StateSettings) -> StateStore:
    """Return the store of named states that clients use: one in the shared `store`, or else `own`.

    It is `own` if there is no shared store, or if `settings.folder` is set: persistent states are then in that folder.
    """
    if store is None or settings.folder is not None:
        return own
    from states.shared.state_store import SharedStateStore  # needs an extra, which is installed since the store is open

    capacity, quota = settings.capacity, settings.quota
    return SharedStateStore(own, store.client, fingerprint, capacity=capacity, quota=quota, forget=own.report_forgotten)


def make_state_store(
    shape: ModelShape,
    fingerprint: str,
    folder: Path | None = None,
    capacity: int = DEFAULT_CAPACITY,
    quota: Quota | None = None,
    *,
    file_folder: Path | None = None,
) -> LocalStateStore:
    """Create an empty store of named states for models of `shape`. Creates `folder` if it is missing.

    `folder` is for persistent states. Requests may read state files from `file_folder`, or else from `folder`.
    """
    files = StateFiles(shape, fingerprint, file_folder or folder)
    try:
        saved = None if folder is None else SavedStates(files, folder)
    except OSError as error:
        raise StateError(f"the folder of states, {folder}, can't be made: {error.strerror}") from error
    return LocalStateStore(files, capacity=capacity, saved=saved, quota=quota or Quota())
