"""Opens a model file of any known format and convention as one thing: a shape, and tensors under BlinkDL's names.

Knows how the steps follow each other and none of them: the format reads, the convention names and turns, the version's
layout checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.model.conventions import StoredTensor, find_convention
from rnn_engine.model.fingerprint import fingerprint
from rnn_engine.model.formats import open_source
from rnn_engine.model.layout import CheckedModel, Layout, check_tensors
from rnn_engine.model.source import TensorInfo, TensorSource
from rnn_engine.types import ModelShape

FindLayout: TypeAlias = Callable[[Iterable[str]], Layout]
"""Finds the layout of the version whose tensors have these names. Raises ModelError where there is none."""


class ModelFile:
    """An open model. Arrays that it gave out stay valid after it is closed."""

    def __init__(
        self, path: Path, source: TensorSource, stored: Mapping[str, StoredTensor], checked: CheckedModel
    ) -> None:
        self.path = path
        self.shape: ModelShape = checked.shape
        self.names: tuple[str, ...] = tuple(checked.tensors)
        self._source = source
        self._stored = stored
        self._tensors = checked.tensors
        self.fingerprint: str = fingerprint(self.shape.version, self.names, self._view)

    @classmethod
    def open(cls, path: Path, find_layout: FindLayout) -> ModelFile:
        """Open and check a model file; no weights are read into memory yet.

        Raises ModelError where the file can't be read or does not fit its layout; the message has the path.
        """
        source = open_source(path)
        try:
            stored, checked = _check(path, source, find_layout)
            return cls(path, source, stored, checked)
        except BaseException:
            source.close()
            raise

    def __enter__(self) -> ModelFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def has(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> NDArray[Any]:
        """A tensor in BlinkDL's orientation, of the type as stored, contiguous, aligned and read-only.

        It is a view of the mapped file, or a copy where the file keeps it compressed, swapped, strided or unaligned.
        Raises KeyError for a name that the model does not have, ModelError where a compressed tensor turns out to be
        damaged, ValueError after `close`.
        """
        array = np.require(self._view(name), requirements=("C", "A"))
        array.flags.writeable = False
        return array

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        self._source.close()

    def _view(self, name: str) -> NDArray[Any]:
        """The tensor as it lies in the file, seen through the axes of BlinkDL's orientation."""
        info, place = self._tensors[name], self._stored[name]
        array = self._source.read(place.name)
        turned = array.swapaxes(-1, -2) if place.swapped else array
        view: NDArray[Any] = turned[(0,) * (turned.ndim - len(info.shape))]  # leading axes of size 1
        return view


def _check(path: Path, source: TensorSource, find_layout: FindLayout) -> tuple[dict[str, StoredTensor], CheckedModel]:
    """Where each tensor is stored, and what the version's layout makes of them all."""
    stored = find_convention(path, source.tensors).translate(source.tensors)
    tensors = {name: _oriented(source.tensors[place.name], place) for name, place in stored.items()}
    try:
        return stored, check_tensors(find_layout(stored), tensors)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def _oriented(info: TensorInfo, place: StoredTensor) -> TensorInfo:
    if not place.swapped or len(info.shape) < 2:
        return info
    *leading, rows, columns = info.shape
    return TensorInfo((*leading, columns, rows), info.dtype)
