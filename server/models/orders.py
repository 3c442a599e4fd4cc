"""What a model is to be loaded with, and the folder from which admins may load."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from rnn_engine.errors import ForbiddenError, NotFoundError
from rnn_engine.forward import Progress
from rnn_engine.interface import EngineLike
from rnn_engine.loading.states import StateFile
from rnn_engine.model import LoraChoice

LoadEngine: TypeAlias = Callable[[Progress], Awaitable[EngineLike]]
"""Loads a model; tells what is being done and how far it is, on any thread."""

MODEL_ENDINGS = frozenset({".st", ".safetensors", ".pth", ".gguf", ".bin", ".prefab"})


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """A model, and how it is to be loaded. Where a setting is None, the server's options say it."""

    name: str
    path: Path
    loras: tuple[LoraChoice, ...] = ()
    states: tuple[StateFile, ...] = ()
    default_state: str | None = None
    weights: str | None = None
    slots: int | None = None
    device: str | None = None
    tokenizer: str | None = None


MakeLoad: TypeAlias = Callable[[LoadOrder], LoadEngine]


class ModelFolder:
    """The folder from which admins may load models, with the others of which they may read and write files."""

    def __init__(self, path: Path, others: Iterable[Path] = ()) -> None:
        self.path = _normal(path)
        self._allowed = (self.path, *map(_normal, others))

    def place(self, text: str) -> Path:
        """Return the path in one of the folders that `text` means, relative to that of models or to where the server
        runs. Raises ForbiddenError where it is outside of all."""
        inside = self._inside(text)
        return next((path for path in inside if path.parent.is_dir()), inside[0])

    def find(self, text: str) -> Path:
        """Return the path of what is there. Raises ForbiddenError, or NotFoundError where nothing is."""
        found = next((path for path in self._inside(text) if path.exists()), None)
        if found is None:
            raise NotFoundError(f"there is no file {text[:200]!r} in {self.path}, the folder of models")
        return found

    def _inside(self, text: str) -> Sequence[Path]:
        """Return what `text` may mean, at least one path."""
        return paths_within(self._allowed, (self.path, Path.cwd()), text)

    def models(self) -> Iterator[Path]:
        """Yield the files of models, by their endings."""
        yield from sorted(path for path in self.path.iterdir() if path.suffix in MODEL_ENDINGS and path.is_file())


def paths_within(folders: Sequence[Path], bases: Iterable[Path], text: str) -> Sequence[Path]:
    """Return the paths in one of the folders that `text` means, relative to each of the bases, at least one.

    Raises ForbiddenError where all are outside.
    """
    paths = [] if "\0" in text else [_normal(base / text) for base in bases]
    inside = [path for path in paths if any(path.is_relative_to(folder) for folder in folders)]
    if not inside:
        names = ", ".join(map(str, folders))
        raise ForbiddenError(f"{text[:200]!r} is outside of {names}, where admins may read and write files")
    return inside


def _normal(path: Path) -> Path:
    return Path(os.path.abspath(path))
