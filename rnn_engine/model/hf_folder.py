"""Open the tensors of a Hugging Face folder: one file, or shards that an index lists."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rnn_engine.errors import ModelError
from rnn_engine.model.json_file import read_json
from rnn_engine.tensor_files.formats import open_source
from rnn_engine.tensor_files.joined_files import JoinedFiles
from rnn_engine.tensor_files.listing import count, show, show_all
from rnn_engine.tensor_files.source import TensorSource

CONFIG_NAME: Final = "config.json"
_FILES: Final = ("model.safetensors", "pytorch_model.bin")
_INDEX_ENDING: Final = ".index.json"
_LONGEST_NAME: Final = 255  # bytes; most systems' own
_MOST_SHARDS: Final = 512  # each is an open file


def open_folder(folder: Path) -> TensorSource:
    """Open the folder's model, as transformers finds it: safetensors first, and one file before shards.

    Raises ModelError where there is none, and where the index and the shards contradict each other.
    """
    if not (folder / CONFIG_NAME).is_file():
        raise ModelError(f"{folder} has no {CONFIG_NAME}; expected a Hugging Face folder, or the path of a model file")
    for name in _FILES:
        if (folder / name).is_file():
            return open_source(folder / name)
        if (folder / f"{name}{_INDEX_ENDING}").is_file():
            return _open_shards(folder / f"{name}{_INDEX_ENDING}")
    allowed = ", ".join(f"{name}, {name}{_INDEX_ENDING}" for name in _FILES)
    raise ModelError(f"{folder} has no model file; expected one of {allowed}")


def _open_shards(index: Path) -> JoinedFiles:
    shards = _read_index(index)
    if missing := [name for name in shards if not (index.parent / name).is_file()]:
        raise ModelError(
            f"{index} lists {count(missing, 'file')} that the folder lacks: {show_all(missing)}; "
            "is the download complete?"
        )
    with ExitStack() as undo:
        sources = []
        for name, expected in shards.items():
            source = open_source(index.parent / name)
            undo.callback(source.close)
            _check_shard(index, name, expected, set(source.tensors))
            sources.append(source)
        undo.pop_all()
    return JoinedFiles(sources)


def _read_index(path: Path) -> dict[str, set[str]]:
    """Return the names of the tensors of each shard, by the shard's file name."""
    found = read_json(path).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ModelError(f"{path}: weight_map is {show(repr(found))}; expected the file of each tensor")
    shards: dict[str, set[str]] = defaultdict(set)
    for tensor, file in found.items():
        _check_file_name(path, tensor, file)
        shards[file].add(tensor)
    if len(shards) > _MOST_SHARDS:
        raise ModelError(f"{path} lists {len(shards)} files; expected at most {_MOST_SHARDS}")
    return dict(sorted(shards.items()))


def _check_file_name(path: Path, tensor: str, file: Any) -> None:  # noqa: ANN401
    """Raise ModelError for what is no name of a file in the index's own folder."""
    is_name = isinstance(file, str) and 0 < len(file.encode(errors="surrogatepass")) <= _LONGEST_NAME
    if not is_name or file in (".", "..") or set(file) & set("/\\:\0"):
        raise ModelError(
            f"{path}: tensor {show(tensor)} is in {show(repr(file))}; expected the name of a file in the same folder"
        )


def _check_shard(index: Path, name: str, expected: set[str], found: set[str]) -> None:
    if missing := sorted(expected - found):
        raise ModelError(
            f"{index.parent / name} lacks {count(missing, 'tensor')} that {index.name} places there: "
            f"{show_all(missing)}"
        )
    if unlisted := sorted(found - expected):
        raise ModelError(
            f"{index.parent / name} has {count(unlisted, 'tensor')} that {index.name} does not place there: "
            f"{show_all(unlisted)}"
        )
