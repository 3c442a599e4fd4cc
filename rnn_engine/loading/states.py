"""Open the store of named states with which an engine starts: the operator's, the model's own, and earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from rnn_engine.errors import StateError
from rnn_engine.loading.settings import StateSettings
from rnn_engine.model import LoraChoice, ModelFile
from rnn_engine.model.layout import TensorSpec
from rnn_engine.model.lora import is_lora, open_lora
from rnn_engine.tensor_files.source import TensorInfo
from rnn_engine.types import NO_LORAS, LoraPairs, LoraRoom, ModelShape
from rnn_engine.versions.table import VERSIONS
from rnn_engine_states.files.exchange import ReadLora, StateFiles, find_no_lora
from rnn_engine_states.files.full import as_state_errors
from rnn_engine_states.files.reading import LoadedState, is_time_state, state_from_tuned
from rnn_engine_states.frozen import NO_INITIAL_STATE, freeze_lora
from rnn_engine_states.named.store import LocalTable, SavedStates, StateStore
from rnn_engine_states.shared.config import OpenStore

_DEFAULTS = StateSettings()

OWN_STATE = "model"
"""The name of the state that a model's own file contains."""


def open_states(model: ModelFile, settings: StateSettings, lora_room: LoraRoom = NO_LORAS) -> LocalTable:
    """Create the store of named states for an open model, and load the states of its files and of earlier runs.

    These are the files that `settings` name, the model's own tuned state, if there is one, and the persistent states of
    earlier runs. A file may have a LoRA for which the runner has a place in `lora_room`. Raises StateError if a file
    can't be read or does not fit the model.
    """
    states = make_state_store(
        model.shape,
        model.fingerprint,
        settings,
        lora_room=lora_room,
        read_lora=partial(_read_lora, model.tensors, VERSIONS.get(model.shape.version).layout.list_specs(model.names)),
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


def _read_lora(
    tensors: Mapping[str, TensorInfo], specs: Sequence[TensorSpec], path: Path
) -> tuple[str | None, LoraPairs] | None:
    """Read a LoRA for a model with `tensors`; see `rnn_engine_states.files.exchange.ReadLora`."""
    choice = LoraChoice.parse(str(path))
    if not is_lora(choice.path):
        return None
    with as_state_errors(str(choice.path)), closing(open_lora(choice, specs, tensors)) as lora:
        return lora.base, freeze_lora(lora.pairs(), choice.path.name)


def share_names(store: OpenStore | None, own: LocalTable, fingerprint: str, settings: StateSettings) -> StateStore:
    """Return clients' named states: in the shared `store`, or `own` without one or with `settings.folder`."""
    if store is None or settings.folder is not None:
        return StateStore(own)
    from rnn_engine_states.shared.table import SharedTable  # needs an extra, which is installed: the store is open

    capacity, quota, forget = settings.capacity, settings.quota, own.report_forgotten
    return StateStore(SharedTable(own, store.client, fingerprint, capacity=capacity, quota=quota, forget=forget))


def make_state_store(
    shape: ModelShape,
    fingerprint: str,
    settings: StateSettings = _DEFAULTS,
    *,
    lora_room: LoraRoom = NO_LORAS,
    read_lora: ReadLora = find_no_lora,
) -> LocalTable:
    """Create an empty store of named states for models with the sizes `shape`, with folders and bounds of `settings`.

    The other arguments are as `StateFiles` has them.
    """
    folder = settings.folder
    files = StateFiles(
        shape,
        fingerprint,
        settings.file_folder or folder,
        any_model=settings.any_model,
        lora_room=lora_room,
        read_lora=read_lora,
    )
    try:
        saved = None if folder is None else SavedStates(files, folder)
    except OSError as error:
        raise StateError(f"the folder of states, {folder}, can't be made: {error.strerror}") from error
    return LocalTable(files, capacity=settings.capacity, saved=saved, quota=settings.quota)
