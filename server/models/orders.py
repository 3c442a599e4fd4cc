"""What a model is to be loaded with, and the folder from which admins may load."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from rnn_engine.errors import ForbiddenError, NotFoundError
from rnn_engine.interface import EngineLike
from rnn_engine.loading.states import StateFile
from rnn_engine.model import LoraChoice

LoadEngine: TypeAlias = Callable[[], Awaitable[EngineLike]]

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
    """The only folder of which admins may read, load and write files through the server."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))

    def place(self, text: str) -> Path:
        """Return the path in the folder that `text` means, relative to it or to where the server runs.

        Raises ForbiddenError where it is outside.
        """
        for base in (self.path, Path.cwd()):
            path = Path(os.path.normpath(base / text))
            if path.is_relative_to(self.path) and "\0" not in text:
                return path
        raise ForbiddenError(f"{text[:200]!r} is outside of {self.path}, the folder of models")

    def find(self, text: str) -> Path:
        """Return the path of what is there. Raises ForbiddenError, or NotFoundError where nothing is."""
        inside = self.place(text)
        beside = Path(os.path.normpath(Path.cwd() / text))
        for path in (inside, beside):
            if path.is_relative_to(self.path) and path.exists():
                return path
        raise NotFoundError(f"there is no file {text[:200]!r} in {self.path}, the folder of models")

    def models(self) -> Iterator[Path]:
        """Yield the files of models, by their endings."""
        yield from sorted(path for path in self.path.iterdir() if path.suffix in MODEL_ENDINGS and path.is_file())
