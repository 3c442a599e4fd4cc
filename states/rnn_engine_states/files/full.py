"""The full-state file, the engine's own format: a whole recurrent state with token shifts, its model and its tokens.

It is a safetensors file. Tensors: one `state.<field>` [L, ...] for each recurrent field in f32 or f16, `tokens` [T] u32
if the path is known, `logits` [V] f32 if the last ones were kept, and of any LoRA `lora.A.<matrix>` [R, in] and
`lora.B.<matrix>` [out, R] f32. Metadata: format, format_version, model (the
fingerprint), model_version, num_tokens, last_tokens, initial_state, kind, label. The metadata also has a CRC-32 for
every tensor (type, shape and bytes) and one over the rest of the metadata, so that any damaged byte is found.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError, StateError
from rnn_engine.files import atomic_file
from rnn_engine.tensor_files.formats import read_source
from rnn_engine.tensor_files.pth_file import PthFile
from rnn_engine.tensor_files.safetensors_file import SafetensorsFile, encode_header
from rnn_engine.tensor_files.source import BinaryFile, ByteSource, MemoryFile, TensorSource, show
from rnn_engine.types import LoraPairs, ModelShape
from rnn_engine_states.frozen import Payload, check_array, check_fields, check_shape, check_state, freeze_lora

# Opening state files. An error of the tensor readers about a damaged file becomes a `StateError`.

_HEADER_LIMIT = 1 << 20  # bytes; the header of a whole model has some 0.2 MB


@contextmanager
def opened(path: Path) -> Iterator[BinaryFile]:
    """Open a state file in a `with` block. Raises StateError, also for a ModelError, with its name, not its path."""
    with as_state_errors(str(path)), closing(BinaryFile(path)) as file:
        yield file


@contextmanager
def as_state_errors(path: str) -> Iterator[None]:
    """Convert each ModelError in a `with` block to StateError, with the file's name in place of its `path`."""
    try:
        yield
    except ModelError as error:
        raise StateError(str(error).replace(path, Path(path).name)) from error


def read_safetensors(file: ByteSource) -> SafetensorsFile:
    """Open a safetensors file and read its header, which may have 1 MB. Raises ModelError if it is damaged."""
    return SafetensorsFile(file, _HEADER_LIMIT)


def read_pth(file: BinaryFile, shape: ModelShape) -> TensorSource:
    """Open a .pth file for tensors of twice a state's bytes at most; closing it closes `file`. Raises ModelError."""
    if file.read(0, min(2, file.stamp.size)).tobytes() != b"PK":
        return read_source(file)  # which finds out what else it is
    return PthFile(file, most_inflated=2 * shape.state_bytes)  # tensors in f64 have twice the bytes


def modified(path: Path) -> float:
    """Return the modification time of a file in Unix seconds, or 0 if it is unknown, as for a loop of links."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _header(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    return encode_header([(name, array.shape, array.dtype) for name, array in tensors.items()], metadata)


def file_bytes(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> int:
    """Return the exact size in bytes of the safetensors file that `write_file` makes of these tensors and metadata."""
    return len(_header(tensors, metadata)) + sum(array.nbytes for array in tensors.values())


def file_parts(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file of these tensors and metadata, in pieces."""
    yield _header(tensors, metadata)
    for array in tensors.values():
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def write_file(path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file atomically: after a crash there is the old file or the new one."""
    with atomic_file(path) as file:
        for part in file_parts(tensors, metadata):
            file.write(part)


FORMAT = "rnn-engine-state"
FORMAT_VERSION = "1"

_STATE_PREFIX = "state."
_TOKENS = "tokens"
_LOGITS = "logits"
_LORA_HALVES = ("lora.A.", "lora.B.")
_CHECKSUM_PREFIX = "crc32."
_METADATA_CHECKSUM = "crc32"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a state: its model, the initial state of its sequence, and the tokens run from there."""

    model: str  # fingerprint
    initial_state: str  # what the sequence started from; see `rnn_engine_states.frozen.NO_INITIAL_STATE`
    num_tokens: int  # that it has run since then
    kind: str
    name: str = ""  # of a named state; `label` in the file
    last_tokens: tuple[int, ...] = ()  # the last of them, as far as they are known


@dataclass(frozen=True, slots=True)
class Summary:
    """What a full-state file says without arrays: origin, tokens if known, and if there are logits."""

    origin: Origin
    tokens: bytes | None  # packed; None if they are not known
    has_logits: bool


@dataclass(frozen=True, slots=True, eq=False)
class SavedState:
    """The whole content of a full-state file: the state's origin, its tokens if known, and its arrays."""

    origin: Origin
    tokens: bytes | None  # packed; None if they are not known
    payload: Payload
    lora: LoraPairs | None = None


def full_state_file(
    saved: SavedState, model_version: str, *, checksums: bool = True
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the tensors and the metadata of the full-state file of `saved`.

    `model_version` is the RWKV version, such as "v7". Without `checksums`, the metadata has as many bytes, and the
    arrays' values are not read.
    """
    tensors: dict[str, NDArray[Any]] = {}
    if saved.tokens is not None:
        # the tokens come first in the file, so that `read_summary` reads only its beginning
        tensors[_TOKENS] = np.frombuffer(saved.tokens, np.uint32)  # [T]
    for name, array in sorted(saved.payload.state.items()):  # the same bytes, whatever the order of the fields
        tensors[_STATE_PREFIX + name] = array
    if saved.payload.logits is not None:
        tensors[_LOGITS] = saved.payload.logits
    for name, pair in () if saved.lora is None else saved.lora.pairs.items():
        tensors.update((prefix + name, half) for prefix, half in zip(_LORA_HALVES, pair, strict=True))
    origin = saved.origin
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
    for name, array in tensors.items():
        metadata[_CHECKSUM_PREFIX + name] = f"{_crc32(array) if checksums else 0:08x}"
    return tensors, metadata | {_METADATA_CHECKSUM: _metadata_crc32(metadata)}


def read_summary(path: Path, model: str | None) -> Summary:
    """Read the metadata and the tokens of a full-state file, but not the arrays of its state and logits.

    Raises StateError if the file is of another format, or if the part that is read is damaged. Unless `model` is None,
    also raises StateError if the file's model has another fingerprint.
    """
    with opened(path) as data:
        file = read_safetensors(data)
        return _summary(file, _checked_metadata(file, path), path, model)


def read_full_state(path: Path, shape: ModelShape, model: str | None) -> SavedState:
    """Read a whole full-state file. Raises StateError if it is damaged or does not fit the model.

    Unless `model` is None, also raises StateError if the file's model has another fingerprint.
    """
    with opened(path) as data:
        return full_state_of(read_safetensors(data), path, shape, model)


def parse_full_state(data: bytes, name: str, shape: ModelShape, model: str) -> SavedState:
    """Parse a full-state file in memory, called `name` in errors, which are those of `read_full_state`."""
    with as_state_errors(name):
        return full_state_of(read_safetensors(MemoryFile(name, data)), Path(name), shape, model)


def full_state_of(file: SafetensorsFile, path: Path, shape: ModelShape, model: str | None) -> SavedState:
    """Read an open full-state file. Raises StateError as `read_full_state`, or ModelError if it is damaged."""
    metadata = _checked_metadata(file, path)
    summary = _summary(file, metadata, path, model)
    fields = {name.removeprefix(_STATE_PREFIX): name for name in file.tensors if name.startswith(_STATE_PREFIX)}
    check_fields({field: file.tensors[name] for field, name in fields.items()}, shape, path.name)
    arrays = {field: _checked_tensor(file, name, metadata, path) for field, name in fields.items()}
    check_state(arrays, shape, path.name)
    logits = None
    if summary.has_logits:
        check_shape(file.tensors[_LOGITS].shape, (shape.row_size,), f"{path.name}: logits")
        tensor = _checked_tensor(file, _LOGITS, metadata, path)
        logits = check_array(tensor, (shape.row_size,), f"{path.name}: logits")
    halves = [
        {
            name.removeprefix(prefix): _checked_tensor(file, name, metadata, path)
            for name in file.tensors
            if name.startswith(prefix)
        }
        for prefix in _LORA_HALVES
    ]
    if halves[0].keys() != halves[1].keys():
        raise StateError(f"{path.name}: damaged: a pair of its LoRA has one half")
    pairs = {name: (down, halves[1][name]) for name, down in halves[0].items()}
    lora = freeze_lora(pairs, path.name) if pairs else None
    return SavedState(summary.origin, summary.tokens, Payload(arrays, logits), lora)


def is_full_state(metadata: Mapping[str, str] | None) -> bool:
    """Return True if `metadata` of a safetensors file marks a full-state file, of any format version."""
    return metadata is not None and metadata.get("format") == FORMAT


def _metadata_crc32(metadata: Mapping[str, str]) -> str:
    covered = {name: value for name, value in metadata.items() if name != _METADATA_CHECKSUM}
    return f"{zlib.crc32(json.dumps(covered, sort_keys=True).encode()):08x}"


def _crc32(array: NDArray[Any]) -> int:
    kind = zlib.crc32(f"{array.dtype} {list(array.shape)}".encode())
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, kind)


def _checked_metadata(file: SafetensorsFile, path: Path) -> dict[str, str]:
    metadata = file.metadata
    if not is_full_state(metadata):
        raise StateError(f"{path.name}: format is {metadata.get('format')!r}; expected {FORMAT!r}")
    if metadata.get("format_version") != FORMAT_VERSION:
        version = metadata.get("format_version")
        raise StateError(f"{path.name}: format version {version!r} can't be read; expected {FORMAT_VERSION!r}")
    if metadata.get(_METADATA_CHECKSUM) != _metadata_crc32(metadata):
        raise StateError(f"{path.name}: damaged: the metadata does not match its checksum")
    covered = {name.removeprefix(_CHECKSUM_PREFIX) for name in metadata if name.startswith(_CHECKSUM_PREFIX)}
    if set(file.tensors) != covered:
        raise StateError(f"{path.name}: damaged: its metadata lists other tensors than the file holds")
    return metadata


def _summary(file: SafetensorsFile, metadata: Mapping[str, str], path: Path, model: str | None) -> Summary:
    origin = _origin(metadata, path)
    check_model(path.name, origin.model, model)
    tokens = _tokens(file, metadata, origin, path) if _TOKENS in file.tensors else None
    return Summary(origin, tokens, _LOGITS in file.tensors)


def check_model(name: str, found: str | None, expected: str | None) -> None:
    """Raise StateError if a file says that its state was made for another model than the `expected` one.

    `found` is None if the file names no model, and `expected` is None if any is accepted. The error calls the file
    `name`.
    """
    if found is not None and expected is not None and found != expected:
        raise StateError(
            f"{name}: the state belongs to model {show(found)}; the loaded model is {expected}. If you know that they "
            "suit each other, allow states of any model (--any-model-states, any_model)"
        )


def _origin(metadata: Mapping[str, str], path: Path) -> Origin:
    try:
        return Origin(
            model=metadata["model"],
            initial_state=metadata["initial_state"],
            num_tokens=_count(metadata["num_tokens"]),
            kind=metadata["kind"],
            name=metadata["label"],
            last_tokens=tuple(map(_count, metadata["last_tokens"].split())),
        )
    except (KeyError, ValueError) as error:
        raise StateError(f"{path.name}: metadata is incomplete: {error}") from error


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise ValueError(f"{text[:20]!r} is not a whole number from 0 on")
    return int(text)


def _tokens(file: SafetensorsFile, metadata: Mapping[str, str], origin: Origin, path: Path) -> bytes:
    info = file.tensors[_TOKENS]
    if info.dtype != np.uint32 or info.shape != (origin.num_tokens,):
        raise StateError(
            f"{path.name}: tokens are {info.dtype} {list(info.shape)}; expected uint32 [{origin.num_tokens}]"
        )
    return _checked_tensor(file, _TOKENS, metadata, path).tobytes()


def _checked_tensor(file: SafetensorsFile, name: str, metadata: Mapping[str, str], path: Path) -> NDArray[Any]:
    tensor = file.read(name)
    if f"{_crc32(tensor):08x}" != metadata.get(_CHECKSUM_PREFIX + name):
        raise StateError(f"{path.name}: damaged: {name} does not match its checksum")
    return tensor
