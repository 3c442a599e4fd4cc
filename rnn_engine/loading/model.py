"""Opens model files of the versions that are served."""

from __future__ import annotations

from pathlib import Path

from rnn_engine.model.model_file import ModelFile
from rnn_engine.versions.table import VERSIONS, VersionTable


def open_model(path: Path, versions: VersionTable = VERSIONS) -> ModelFile:
    """Open a model file and check what its header says. Close it, or use it as a context manager.

    Raises ModelError where the file can't be read or does not make a model that is served; the message has the path.
    """
    return ModelFile.open(path, versions.find_layout)
