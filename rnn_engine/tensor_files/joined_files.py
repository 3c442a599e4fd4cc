"""Several open files of tensors as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from numpy.typing import NDArray

from rnn_engine.quantised import Blocks
from rnn_engine.tensor_files.binary_file import FileStamp
from rnn_engine.tensor_files.source import TensorInfo, TensorSource


class JoinedFiles:
    """Files that have no tensor in common. Implements `TensorSource`; closes the files with itself."""

    def __init__(self, sources: Sequence[TensorSource]) -> None:
        self._sources = tuple(sources)
        self._source_of = {name: source for source in sources for name in source.tensors}
        self._tensors = {name: source.tensors[name] for name, source in self._source_of.items()}
        assert len(self._tensors) == sum(len(source.tensors) for source in sources)

    @property
    def stamp(self) -> FileStamp:
        return FileStamp.of_all([source.stamp for source in self._sources])

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def read(self, name: str) -> NDArray[Any]:
        return self._source_of[name].read(name)

    def read_blocks(self, name: str) -> Blocks | None:
        return self._source_of[name].read_blocks(name)

    def close(self) -> None:
        with ExitStack() as stack:
            for source in self._sources:
                stack.callback(source.close)
