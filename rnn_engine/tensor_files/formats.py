"""Open a model file of any known format, recognised by its first bytes, or several files as one source of tensors.

A new format needs one reader module and one line in `_FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from errno import ENOENT
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.quantised import Blocks
from rnn_engine.tensor_files import part_names
from rnn_engine.tensor_files.gguf_file import GgufFile, Metadata
from rnn_engine.tensor_files.prefab_file import PREFAB_START, PrefabFile
from rnn_engine.tensor_files.pth_file import PthFile
from rnn_engine.tensor_files.safetensors_file import SafetensorsFile
from rnn_engine.tensor_files.source import ALL_ROWS, BinaryFile, FileStamp, TensorSource, count, show_all


class JoinedFiles(TensorSource):
    """Several open model files that have no tensor in common; `close` closes the files."""

    def __init__(self, sources: Sequence[TensorSource]) -> None:
        self.stamp = FileStamp.of_all([source.stamp for source in sources])
        self._sources = tuple(sources)
        self._source_of = {name: source for source in sources for name in source.tensors}
        self.tensors = {name: source.tensors[name] for name, source in self._source_of.items()}
        assert len(self.tensors) == sum(len(source.tensors) for source in sources)

    def reads_rows(self, name: str) -> bool:
        return self._source_of[name].reads_rows(name)

    def read(self, name: str, rows: slice = ALL_ROWS) -> NDArray[Any]:
        return self._source_of[name].read(name, rows)

    def read_blocks(self, name: str, rows: slice = ALL_ROWS) -> Blocks | None:
        return self._source_of[name].read_blocks(name, rows)

    def close(self) -> None:
        with ExitStack() as stack:
            for source in self._sources:
                stack.callback(source.close)


class GgufParts(JoinedFiles):
    """The files of a model that llama.cpp has split. The first one has the metadata."""

    def __init__(self, parts: Sequence[GgufFile]) -> None:
        super().__init__(parts)
        self.metadata = parts[0].metadata


_HEAD_BYTES = 64
_EXPECTED = "a model file (.safetensors, .st, .pth, .gguf or .prefab)"


_FORMATS: tuple[tuple[int, bytes, Callable[[BinaryFile], TensorSource]], ...] = (
    (0, b"PK\x03\x04", PthFile),
    (0, b"GGUF", GgufFile),
    (0, PREFAB_START, PrefabFile),
    (8, b"{", SafetensorsFile),
)
"""The position in a file at which a format has certain bytes, these, and the source of tensors that closes the file."""

_WEB_PAGE = "a web page and not a model; download the file itself"
_REFUSALS = {
    b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9": (
        "a .pth file in the layout that torch wrote before version 1.6; load it in a newer torch and save it again"
    ),
    b"fmgg": "a file of rwkv.cpp, which is not read; take the model's .pth, .safetensors or .gguf file",
    b"version https://git-lfs": (
        "a Git LFS pointer and not the model itself; fetch it with `git lfs pull` or download the file directly"
    ),
    b"<!DOCTYPE": _WEB_PAGE,
    b"<html": _WEB_PAGE,
}
"""The first bytes of a file that can't be opened -> what it is."""


def open_source(path: Path) -> TensorSource:
    """Open a model file in any known format, to read its tensors; of a split GGUF model all parts, given any of them.

    Raises ModelError if the file is missing, can't be read, or has no known format.
    """
    source = _open_file(path)
    try:
        if not isinstance(source, GgufFile) or source.num_parts == 1:
            return source
        names = part_names(path.name)
        if len(names) != source.num_parts:
            raise ModelError(
                f"{path} is one of {source.num_parts} parts of a model; expected the name that llama.cpp gives it, "
                f"such as model-00001-of-{source.num_parts:05}.gguf"
            )
    except BaseException:
        source.close()
        raise
    source.close()
    return _open_parts([path.with_name(name) for name in names])


def gguf_metadata(path: Path) -> Metadata:
    """Return the metadata of a GGUF file; it is empty for a file of another kind and for none.

    Raises ModelError as `open_source` does.
    """
    if path.suffix != ".gguf" or not path.is_file():
        return {}
    source = open_source(path)
    source.close()
    return source.metadata if isinstance(source, GgufFile | GgufParts) else {}


def _open_file(path: Path) -> TensorSource:
    _check_kind(path)
    file = BinaryFile(path)
    try:
        return read_source(file)
    except BaseException:
        file.close()
        raise


def _open_parts(paths: Sequence[Path]) -> GgufParts:
    if missing := [path.name for path in paths if not path.is_file()]:
        raise ModelError(
            f"{paths[0].parent} lacks {count(missing, 'part')} of the model: {show_all(missing)}; "
            "is the download complete?"
        )
    with ExitStack() as undo:
        parts: list[GgufFile] = []
        names: set[str] = set()
        for number, path in enumerate(paths):
            part = _open_file(path)
            undo.callback(part.close)
            if not isinstance(part, GgufFile) or part.metadata.get("split.no") != number:
                raise ModelError(f"{path} is not part {number + 1} of {len(paths)} of a GGUF model, as its name says")
            if twice := names & part.tensors.keys():
                raise ModelError(f"{path}: {show_all(sorted(twice))} is in an earlier part, too")
            names |= part.tensors.keys()
            parts.append(part)
        undo.pop_all()
    return GgufParts(parts)


def read_source(file: BinaryFile) -> TensorSource:
    """Read the header of a model file; return the source of its tensors, which closes it. Raises ModelError."""
    head = file.read(0, min(_HEAD_BYTES, file.stamp.size)).tobytes()
    if not head:
        raise ModelError(f"{file.path} is empty; is its download complete?")
    for beginning, what in _REFUSALS.items():
        if head.startswith(beginning):
            raise ModelError(f"{file.path} is {what}")
    for position, mark, open_format in _FORMATS:
        if head.startswith(mark, position):
            return open_format(file)
    raise ModelError(
        f"{file.path} is neither a safetensors file (.safetensors, .st) nor a .pth, .gguf or .prefab; "
        "is its download complete?"
    )


def _check_kind(path: Path) -> None:
    try:
        if not path.exists():
            absent = FileNotFoundError(ENOENT, "No such file", str(path))
            raise ModelError(f"{path} does not exist; expected {_EXPECTED}") from absent
        if not path.is_file():
            kind = "a folder" if path.is_dir() else "not a regular file"
            raise ModelError(f"{path} is {kind}; expected {_EXPECTED}")
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}") from error
