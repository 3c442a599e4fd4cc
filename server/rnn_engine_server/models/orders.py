"""Descriptions of models to load, and the folder from which admins may load them."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from rnn_engine.errors import ForbiddenError, NotFoundError, has_control_characters
from rnn_engine.forward import Progress
from rnn_engine.interface import EngineLike
from rnn_engine.loading.settings import LoadSettings, StateFile
from rnn_engine.model import LoraChoice
from rnn_engine_server.core.settings import ServerSettings

LoadEngine: TypeAlias = Callable[[Progress], Awaitable[EngineLike]]
"""Loads a model; reports its steps and its progress, on any thread."""

MODEL_ENDINGS = frozenset({".st", ".safetensors", ".pth", ".gguf", ".bin", ".prefab"})


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """A description of a model to load: its name, files and settings.

    For a setting that is None, the server's option is used.
    """

    name: str
    path: Path
    loras: tuple[LoraChoice, ...] = ()
    states: tuple[StateFile, ...] = ()
    default_state: str | None = None
    weights: str | None = None
    slots: int | None = None
    device: str | None = None
    tokenizer: str | None = None
    reranker: Path | None = None  # of an embedding model; None: it has none

    def adapt(self, loading: LoadSettings) -> LoadSettings:
        """Return the settings with which the model is loaded; `loading` are the server's."""
        return replace(
            loading,
            loras=self.loras,
            reranker=self.reranker,
            weights=self.weights or loading.weights,
            device=self.device or loading.device,
            tokenizer=self.tokenizer or loading.tokenizer,
        )

    def uses(self, path: Path) -> bool:
        """Return True if the model is loaded from `path`, from a file in it, or from a folder that contains it."""
        files = [self.path, *(lora.path for lora in self.loras), *(state.path for state in self.states)]
        files += [] if self.reranker is None else [self.reranker]
        used = [_real(file) for file in files]
        return any(each.is_relative_to(path) or path.is_relative_to(each) for each in used)


MakeLoad: TypeAlias = Callable[[LoadOrder], LoadEngine]


class ModelFolder:
    """The folder from which admins may load models, and other folders whose files they may read and write.

    A link in them that leads out may be read through, but not written through.
    """

    def __init__(self, path: Path, others: Iterable[Path] = ()) -> None:
        self.path = _normal(path)
        self._folders = (self.path, *map(_normal, others))

    def place(self, text: str) -> Path:
        """Return the path that `text` names, with links resolved. A file may be written there.

        `text` may be relative to this folder or to the server's working directory, as for `place_below`.
        """
        return place_below(self._folders, (self.path, Path.cwd()), text)

    def find(self, text: str) -> Path:
        """Return the path of the existing file or folder that `text` names.

        Raises ForbiddenError if `text` leads out of the folders, or NotFoundError if nothing exists there.
        """
        allowed = (*self._folders, *map(_real, self._folders))
        inside = [
            path
            for path in _meanings((self.path, Path.cwd()), text, _normal)
            if any(path.is_relative_to(folder) for folder in allowed)
        ]
        if not inside:
            names = ", ".join(map(str, self._folders))
            raise ForbiddenError(f"{text[:200]!r} is outside of {names}, where admins may read and write files")
        found = next((path for path in inside if os.path.exists(path)), None)
        if found is None:
            raise NotFoundError(f"there is no file {text[:200]!r} in {self.path}, the folder of models")
        return found

    def models(self) -> Iterator[Path]:
        """Yield the folder's model files, recognised by their endings, in order of their names."""
        yield from sorted(path for path in self.path.iterdir() if path.suffix in MODEL_ENDINGS and path.is_file())


def place_below(folders: Iterable[Path], bases: Iterable[Path], text: str) -> Path:
    """Return the path that `text` names, relative to one of `bases`, if it is below one of `folders`.

    A file may be written there. Links in it are resolved. Among several such paths, the first whose parent folder
    exists is taken. Raises ForbiddenError if no such path is below a folder.
    """
    allowed = [_real(folder) for folder in folders]
    below = [path for path in _meanings(bases, text, _real) if any(folder in path.parents for folder in allowed)]
    if not below:
        names = ", ".join(map(str, allowed))
        raise ForbiddenError(f"{text[:200]!r} is not below {names}, where admins may write files")
    return next((path for path in below if path.parent.is_dir()), below[0])


def _meanings(bases: Iterable[Path], text: str, normal: Callable[[Path], Path]) -> Sequence[Path]:
    """Return the paths that `text` may stand for, one relative to each of `bases`, each passed through `normal`.

    There are none if `text` has control characters.
    """
    return [] if has_control_characters(text) else [normal(base / text) for base in bases]


def _normal(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def folder_of(settings: ServerSettings) -> ModelFolder:
    """Return the folder of models. Raises NotFoundError if the operator has named none."""
    if settings.model_folder is None:
        raise NotFoundError("the server has no folder of models; the operator can name one with --model-folder")
    return ModelFolder(settings.model_folder, settings.admin_folders)
