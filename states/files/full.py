"""Our own state file: a whole recurrent state, shifts included, and where it came from.

A safetensors file. Tensors: one `state.<field>` [L, ...] for each recurrent field in f32 or f16, `tokens` [T] u32
where the path is known, `logits` [V] f32 where the last ones were kept. Metadata: format, format_version, model (the
fingerprint), model_version, num_tokens, last_tokens, initial_state, kind, label, a CRC-32 for every tensor (type,
shape and bytes) and one over the rest of the metadata, so that a damaged byte is found wherever it is.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from rnn_engine.errors import StateError
from rnn_engine.types import ModelShape
from states.checks import check_array, check_state
from states.files.container import file_bytes, file_parts, write_file
from states.payload import Payload

FORMAT = "rnn-engine-state"
FORMAT_VERSION = "1"

_STATE_PREFIX = "state."
_TOKENS = "tokens"
_LOGITS = "logits"
_CHECKSUM_PREFIX = "crc32."
_METADATA_CHECKSUM = "crc32"


class _File(Protocol):
    """What is used of a file that safetensors has opened."""

    def metadata(self) -> dict[str, str] | None: ...

    def keys(self) -> list[str]: ...

    def get_tensor(self, name: str) -> NDArray[Any]: ...


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a state came from."""

    model: str  # fingerprint
    initial_state: str  # what the sequence started from; see `states.frozen.NO_INITIAL_STATE`
    num_tokens: int  # run since then
    kind: str
    name: str = ""  # of a named state; `label` in the file
    last_tokens: tuple[int, ...] = ()  # the last of them, as far as they are known


@dataclass(frozen=True, slots=True)
class Summary:
    """What a full-state file says without its state being read."""

    origin: Origin
    tokens: bytes | None  # packed; None where they are not known
    has_logits: bool


@dataclass(frozen=True, slots=True, eq=False)
class SavedState:
    """What a full-state file holds."""

    origin: Origin
    tokens: bytes | None  # packed; None where they are not known
    payload: Payload


def save_full_state(path: Path, saved: SavedState, model_version: str) -> None:
    """Write the file; a crash leaves the old one or the new one."""
    tensors = _tensors(saved)
    write_file(path, tensors, _metadata(saved.origin, model_version, _checksums(tensors)))


def full_state_parts(saved: SavedState, model_version: str) -> Iterator[bytes | memoryview]:
    """The bytes of the file that `save_full_state` makes, piece by piece."""
    tensors = _tensors(saved)
    return file_parts(tensors, _metadata(saved.origin, model_version, _checksums(tensors)))


def full_state_bytes(saved: SavedState, model_version: str) -> int:
    """The exact size of the file that `save_full_state` makes. Reads no array."""
    tensors = _tensors(saved)
    return file_bytes(tensors, _metadata(saved.origin, model_version, dict.fromkeys(tensors, 0)))


def read_summary(path: Path, model: str | None) -> Summary:
    """What a file holds, without reading the state.

    Raises StateError where the file is damaged as far as it is read, of another format or, unless `model` is None,
    of another model.
    """
    with _opened(path) as file:
        return _summary(file, _checked_metadata(file, path), path, model)


def read_full_state(path: Path, shape: ModelShape, model: str | None) -> SavedState:
    """The whole file. Raises StateError where it is damaged or does not fit; see `read_summary`."""
    with _opened(path) as file:
        metadata = _checked_metadata(file, path)
        summary = _summary(file, metadata, path, model)
        arrays = {
            name.removeprefix(_STATE_PREFIX): _checked_tensor(file, name, metadata, path)
            for name in file.keys()  # noqa: SIM118  (not a mapping)
            if name.startswith(_STATE_PREFIX)
        }
        check_state(arrays, shape, path.name)
        logits = None
        if summary.has_logits:
            tensor = _checked_tensor(file, _LOGITS, metadata, path)
            logits = check_array(tensor, (shape.vocab_size,), f"{path.name}: logits")
    return SavedState(summary.origin, summary.tokens, Payload(arrays, logits))


def is_full_state(metadata: Mapping[str, str] | None) -> bool:
    """Whether a safetensors file with this metadata is one of ours, in any format version."""
    return metadata is not None and metadata.get("format") == FORMAT


def _tensors(saved: SavedState) -> dict[str, NDArray[Any]]:
    tensors: dict[str, NDArray[Any]] = {}
    if saved.tokens is not None:
        # first in the file, so that a start that reads them alone touches no more
        tensors[_TOKENS] = np.frombuffer(saved.tokens, np.uint32)  # [T]
    for name, array in saved.payload.state.items():
        tensors[_STATE_PREFIX + name] = array
    if saved.payload.logits is not None:
        tensors[_LOGITS] = saved.payload.logits
    return tensors


def _metadata(origin: Origin, model_version: str, checksums: Mapping[str, int]) -> dict[str, str]:
    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "model": origin.model,
        "model_version": model_version,
        "initial_state": origin.initial_state,
        "num_tokens": str(origin.num_tokens),
        "kind": origin.kind,
        "label": origin.name,
        "last_tokens": " ".join(map(str, origin.last_tokens)),
    }
    metadata |= {_CHECKSUM_PREFIX + name: f"{checksum:08x}" for name, checksum in checksums.items()}
    return metadata | {_METADATA_CHECKSUM: _metadata_crc32(metadata)}


def _checksums(tensors: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    return {name: _crc32(array) for name, array in tensors.items()}


def _metadata_crc32(metadata: Mapping[str, str]) -> str:
    covered = {name: value for name, value in metadata.items() if name != _METADATA_CHECKSUM}
    return f"{zlib.crc32(json.dumps(covered, sort_keys=True).encode()):08x}"


def _crc32(array: NDArray[Any]) -> int:
    kind = zlib.crc32(f"{array.dtype} {list(array.shape)}".encode())
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, kind)


@contextmanager
def _opened(path: Path) -> Iterator[_File]:
    try:
        with safe_open(path, framework="np") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise StateError(f"{path.name}: not a readable safetensors file: {error}") from error


def _checked_metadata(file: _File, path: Path) -> dict[str, str]:
    metadata: dict[str, str] = file.metadata() or {}
    if not is_full_state(metadata):
        raise StateError(f"{path.name}: format is {metadata.get('format')!r}; expected {FORMAT!r}")
    if metadata.get("format_version") != FORMAT_VERSION:
        version = metadata.get("format_version")
        raise StateError(f"{path.name}: format version {version!r} can't be read; expected {FORMAT_VERSION!r}")
    if metadata.get(_METADATA_CHECKSUM) != _metadata_crc32(metadata):
        raise StateError(f"{path.name}: damaged: the metadata does not match its checksum")
    covered = {name.removeprefix(_CHECKSUM_PREFIX) for name in metadata if name.startswith(_CHECKSUM_PREFIX)}
    if set(file.keys()) != covered:
        raise StateError(f"{path.name}: damaged: holds {sorted(file.keys())}; its metadata tells of {sorted(covered)}")
    return metadata


def _summary(file: _File, metadata: Mapping[str, str], path: Path, model: str | None) -> Summary:
    origin = _origin(metadata, path)
    if model is not None and origin.model != model:
        raise StateError(f"{path.name}: the state belongs to model {origin.model}; this one is {model}")
    names = set(file.keys())
    tokens = _tokens(file, metadata, origin, path) if _TOKENS in names else None
    return Summary(origin, tokens, _LOGITS in names)


def _origin(metadata: Mapping[str, str], path: Path) -> Origin:
    try:
        return Origin(
            model=metadata["model"],
            initial_state=metadata["initial_state"],
            num_tokens=int(metadata["num_tokens"]),
            kind=metadata["kind"],
            name=metadata["label"],
            last_tokens=tuple(map(int, metadata["last_tokens"].split())),
        )
    except (KeyError, ValueError) as error:
        raise StateError(f"{path.name}: metadata is incomplete: {error}") from error


def _tokens(file: _File, metadata: Mapping[str, str], origin: Origin, path: Path) -> bytes:
    tokens = _checked_tensor(file, _TOKENS, metadata, path)
    if tokens.dtype != np.uint32 or tokens.shape != (origin.num_tokens,):
        raise StateError(
            f"{path.name}: tokens are {tokens.dtype} {list(tokens.shape)}; expected uint32 [{origin.num_tokens}]"
        )
    return tokens.tobytes()


def _checked_tensor(file: _File, name: str, metadata: Mapping[str, str], path: Path) -> NDArray[Any]:
    tensor = file.get_tensor(name)
    if f"{_crc32(tensor):08x}" != metadata.get(_CHECKSUM_PREFIX + name):
        raise StateError(f"{path.name}: damaged: {name} does not match its checksum")
    return tensor
