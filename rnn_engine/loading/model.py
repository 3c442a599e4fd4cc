"""Opens model files of the versions that are served."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rnn_engine.errors import ModelError
from rnn_engine.model.lora import LoraChoice
from rnn_engine.model.merged import MergedModel, OpenModel
from rnn_engine.model.model_file import ModelFile
from rnn_engine.versions.table import VERSIONS, VersionTable
from rnn_engine.versions.v5 import ShapeV5


def open_model(
    path: Path, versions: VersionTable = VERSIONS, *, v5_group_norm_epsilon: float | None = None
) -> ModelFile:
    """Open a model file and check what its header says. Close it, or use it as a context manager.

    `v5_group_norm_epsilon` is for an RWKV-5 that was not trained with the usual one, 64e-5. Raises ModelError where it
    is given for another version, and where the file can't be read or does not make a model that is served; the message
    has the path.
    """
    model = ModelFile.open(path, versions.find_layout)
    if v5_group_norm_epsilon is not None:
        if not isinstance(model.shape, ShapeV5):
            model.close()
            raise ModelError(
                f"{path}: a group norm epsilon of {v5_group_norm_epsilon:g} is not allowed for RWKV "
                f"{model.shape.version}; expected none, since it is a setting of RWKV-5 alone"
            )
        model.shape = model.shape.with_group_norm_epsilon(v5_group_norm_epsilon)
    return model


def open_merged(
    path: Path,
    loras: Sequence[LoraChoice],
    versions: VersionTable = VERSIONS,
    *,
    v5_group_norm_epsilon: float | None = None,
) -> OpenModel:
    """Open a model as `open_model` does, with `loras` merged into it in their order.

    Raises ModelError, besides, where a LoRA can't be read or does not fit the model; the message has the LoRA's path.
    """
    model = open_model(path, versions, v5_group_norm_epsilon=v5_group_norm_epsilon)
    if not loras:
        return model
    return MergedModel(model, loras, versions.get(model.shape.version).layout.list_specs(model.names))
