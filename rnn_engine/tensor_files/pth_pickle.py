"""Read the descriptions of tensors in a .pth file, a zip with a pickle, without running code from it.

A pickle is a program for a stack machine that may call anything it can name. This module runs the program on a machine
of its own without calls: names are inert values, and only the few that describe tensors are recognised. Anything else
that a pickle names or does is an error. `pickle.Unpickler` does not do, even with a `find_class` that refuses all
names: a few bytes make it take gigabytes for its memo, hash forever, or overflow the stack and end the process.

`zipfile` reads the directory and inflates, but does not do for what is stored uncompressed: it is five times as slow,
reads all of an entry before the wanted place, and refuses files into which torch was told to write no checksums.
"""

from __future__ import annotations

import io
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Iterable, KeysView, Mapping
from dataclasses import dataclass
from typing import IO, Any, Final, TypeAlias, TypeGuard

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.tensor_files.source import MOST_DIMENSIONS, BinaryFile, Cursor, show

# Read the entries of a zip file: straight from the file if they are stored uncompressed, else by inflating them.

_LOCAL_HEADER_BYTES: Final = 30
_CHUNK_BYTES: Final = 1 << 16
_LOCAL_MAGIC: Final = b"PK\x03\x04"
_ENCRYPTED: Final = 0x1  # a flag bit of an entry
_DIRECTORY_LIMIT: Final = 4 << 20  # bytes; the directory of a model of a thousand tensors has 0.1 MB

_DAMAGE: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    MemoryError,
    OSError,
    OverflowError,
    RuntimeError,
    NotImplementedError,
    ValueError,
)
"""The exceptions that `zipfile` raises for a damaged zip, or for one that uses unsupported features."""


class ZipArchive:
    """The entries of an open zip file, to be read at positions. Raises ModelError if the zip is damaged.

    The caller closes the file.
    """

    def __init__(self, file: BinaryFile) -> None:
        self._file = file
        try:
            cursor = Cursor(file, _DIRECTORY_LIMIT)
            self._archive = zipfile.ZipFile(io.BufferedReader(cursor))
            cursor.budget = None
        except _DAMAGE as error:
            raise ModelError(f"{file.path}: damaged or truncated zip file: {error}") from error
        self._entries = {entry.filename: entry for entry in self._archive.infolist()}

    @property
    def names(self) -> KeysView[str]:
        return self._entries.keys()

    def size(self, name: str) -> int:
        """Return the length in bytes of the zip's entry `name`, once inflated. Raises KeyError if there is none."""
        return self._entries[name].file_size

    def is_compressed(self, name: str) -> bool:
        return self._entries[name].compress_type != zipfile.ZIP_STORED

    def read(self, name: str, start: int, size: int) -> NDArray[np.uint8]:
        """Return a copy of `size` bytes of the zip's entry `name`, from byte `start` of its inflated content on.

        All bytes before them are inflated, too, if the entry is compressed.
        """
        entry = self._entries[name]
        if entry.compress_type == zipfile.ZIP_STORED:
            return self._read_stored(entry, start, size)
        return self._inflate(entry, start, size)

    def read_whole(self, name: str) -> bytes:
        """Return a copy of the zip's entry `name`, and verify its checksum unless torch has left that out."""
        entry = self._entries[name]
        if entry.CRC == 0:
            return self.read(name, 0, entry.file_size).tobytes()
        return self._inflate(entry, 0, entry.file_size).tobytes()

    def _read_stored(self, entry: zipfile.ZipInfo, start: int, size: int) -> NDArray[np.uint8]:
        file_size = self._file.stamp.size
        header = b""
        if entry.header_offset + _LOCAL_HEADER_BYTES <= file_size:
            header = self._file.read(entry.header_offset, _LOCAL_HEADER_BYTES).tobytes()
        if not header.startswith(_LOCAL_MAGIC) or entry.flag_bits & _ENCRYPTED:
            raise ModelError(f"{self._file.path}: the zip's entry {show(entry.filename)} is damaged or encrypted")
        name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
        begin = entry.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
        self._check_length(entry, min(entry.file_size, file_size - begin), start + size)
        return self._file.read(begin + start, size)

    def _inflate(self, entry: zipfile.ZipInfo, start: int, size: int) -> NDArray[np.uint8]:
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others may ask for any memory
            raise ModelError(
                f"{self._file.path}: the zip's entry {show(entry.filename)} is compressed by method "
                f"{entry.compress_type}; expected a stored or deflated one"
            )
        try:
            data = np.empty(size, np.uint8)
            with self._archive.open(entry) as file:
                length = _skip(file, start) + _fill(data, file)
        except _DAMAGE as error:
            raise ModelError(
                f"{self._file.path}: the zip's entry {show(entry.filename)} can't be read: {error}"
            ) from error
        self._check_length(entry, length, start + size)
        return data

    def _check_length(self, entry: zipfile.ZipInfo, found: int, expected: int) -> None:
        if found < expected:
            raise ModelError(
                f"{self._file.path}: the zip's entry {show(entry.filename)} has {found} bytes; expected {expected}"
            )


def _skip(file: IO[bytes], size: int) -> int:
    """Read and drop up to `size` bytes of `file`; return how many there were."""
    skipped = 0
    while chunk := file.read(min(_CHUNK_BYTES, size - skipped)):
        skipped += len(chunk)
    return skipped


def _fill(data: NDArray[np.uint8], file: IO[bytes]) -> int:
    """Fill `data` with bytes of `file`, in chunks to save memory; return how many there were."""
    filled = 0
    while chunk := file.read(min(_CHUNK_BYTES, len(data) - filled)):
        data[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
        filled += len(chunk)
    return filled


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A torch storage: the zip entry with the numbers of one or more tensors, and their element type."""

    key: str
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor in a .pth file: its storage, and offset, shape and strides in the storage, counted in elements."""

    storage: StorageRef
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


Entry: TypeAlias = TensorRef | tuple[int, ...]
"""An entry of a .pth file: a tensor, or a list of whole numbers that are not negative."""


def read_tensor_refs(data: bytes) -> dict[str, Entry]:
    """Return the tensors, and the lists of whole numbers, that the pickle of a .pth file describes, by name.

    Raises ModelError if the pickle is damaged, asks for anything else, or holds no dict of them.
    """
    try:
        content = _Machine().run(data)
    except ModelError:
        raise
    except Exception as error:  # a damaged pickle: an empty stack, an unknown opcode, broken text
        raise ModelError(f"the pickle is damaged: {type(error).__name__}: {error}") from error
    return _state_dict(content)


def _state_dict(content: object) -> dict[str, Entry]:
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]  # a trainer's checkpoint keeps its weights under this key
    if not isinstance(content, dict):
        raise ModelError(f"the pickle holds a {type(content).__name__}; expected a dict of tensors")
    return {name: _entry(name, value) for name, value in content.items()}


def _entry(name: str, value: object) -> Entry:
    if isinstance(value, TensorRef):
        return value
    if isinstance(value, list) and len(value) > 0 and all(_is_count(item) for item in value):
        return tuple(value)
    expected = "a tensor or a list of whole numbers"
    raise ModelError(f"the pickle's entry {show(name)} is a {type(value).__name__}; expected {expected}")


@dataclass(frozen=True, slots=True)
class _Name:
    """The name of a function or class that a pickle would import; nothing is imported."""

    text: str


_STORAGE_DTYPES: Final[Mapping[_Name, np.dtype[Any]]] = {
    _Name("torch.BFloat16Storage"): np.dtype(ml_dtypes.bfloat16),
    _Name("torch.HalfStorage"): np.dtype(np.float16),
    _Name("torch.FloatStorage"): np.dtype(np.float32),
    _Name("torch.DoubleStorage"): np.dtype(np.float64),
    _Name("torch.LongStorage"): np.dtype(np.int64),
    _Name("torch.IntStorage"): np.dtype(np.int32),
}

_MOST_OPERATIONS: Final = 200_000

_DICT: Final = _Name("collections.OrderedDict")
_TENSOR: Final = _Name("torch._utils._rebuild_tensor_v2")
_PARAMETER: Final = _Name("torch._utils._rebuild_parameter")
_KNOWN_NAMES: Final = frozenset({*_STORAGE_DTYPES, _DICT, _TENSOR, _PARAMETER})


class _Machine:
    """A stack machine that runs a pickle without the operations that import, call or change objects."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []  # heights of the stack
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> object:
        """Run the pickle `data`, and return the value that is on top of the stack at its end."""
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if number == _MOST_OPERATIONS:
                raise ModelError(f"the pickle has more than {_MOST_OPERATIONS} operations; a tensor takes about 40")
            if opcode.name == "STOP":
                return self._stack.pop()
            self._step(opcode.name, argument)
        raise ModelError("the pickle is truncated")

    def _step(self, opcode: str, argument: Any) -> None:  # noqa: ANN401
        stack = self._stack
        match opcode:
            case "PROTO" | "FRAME":
                pass
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BINUNICODE8":
                stack.append(argument)
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(opcode == "NEWTRUE")
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "MARK":
                self._marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(self._above_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._take(int(opcode[-1]))))
            case "APPEND":
                self._extend(self._take(1))
            case "APPENDS":
                self._extend(self._above_mark())
            case "SETITEM":
                self._update(self._take(2))
            case "SETITEMS":
                self._update(self._above_mark())
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "GLOBAL":
                stack.append(_name(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                stack.append(_name(*self._take(2)))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                stack.append(_make(*self._take(2)))
            case "BUILD":  # sets attributes of a dict, torch's `_metadata`, which are ignored
                self._take(1)
                self._top(dict)
            case _:
                raise ModelError(
                    f"the pickle uses the operation {opcode}, which a file of tensors does not need: it is refused"
                )

    def _take(self, count: int) -> list[Any]:
        """Pop the topmost `count` values from the stack, and return them in the order in which they were pushed."""
        if len(self._stack) < count:
            raise ModelError("the pickle is damaged: it takes a value from an empty stack")
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _above_mark(self) -> list[Any]:
        height = self._marks.pop()
        return self._take(len(self._stack) - height) if len(self._stack) > height else []

    def _extend(self, values: Iterable[Any]) -> None:
        self._top(list).extend(values)

    def _update(self, items: list[Any]) -> None:
        """Add `items`, keys and values in turn, to the dict on top of the stack."""
        keys = items[::2]
        if not all(isinstance(key, str) for key in keys):
            raise ModelError("the pickle holds a dict whose keys are not all names")
        self._top(dict).update(zip(keys, items[1::2], strict=True))

    def _top(self, kind: type[Any]) -> Any:  # noqa: ANN401
        if not isinstance(self._stack[-1], kind):
            raise ModelError(
                f"the pickle fills or changes a {type(self._stack[-1]).__name__} as if it were a container"
            )
        return self._stack[-1]


def _name(module: object, name: object) -> _Name:
    if not isinstance(module, str) or not isinstance(name, str):
        raise ModelError("the pickle imports something without a name: it is refused")
    asked = _Name(f"{module}.{name}")
    if asked not in _KNOWN_NAMES:
        raise ModelError(f"the pickle imports {show(asked.text)}, which is not part of a tensor: it is refused")
    return asked


def _make(callee: object, arguments: object) -> dict[Any, Any] | TensorRef:
    """Return the dict or the tensor that a pickle's call of `callee` would make. Raises ModelError for other calls."""
    match callee, arguments:
        case _Name(), () if callee == _DICT:
            return {}
        case _Name(), (storage, offset, shape, strides, *_) if callee == _TENSOR:
            return _tensor(storage, offset, shape, strides)
        case _Name(), (TensorRef() as tensor, *_) if callee == _PARAMETER:
            return tensor
    called = callee.text if isinstance(callee, _Name) else f"a {type(callee).__name__}"
    raise ModelError(f"the pickle calls {called} with arguments that describe no tensor: it is refused")


def _storage(reference: object) -> StorageRef:
    match reference:
        case ("storage", _Name() as kind, str(key), str(), int()) if kind in _STORAGE_DTYPES:
            return StorageRef(key, _STORAGE_DTYPES[kind])
    raise ModelError("the pickle refers to something that is not a tensor storage: it is refused")


def _tensor(storage: object, offset: object, shape: object, strides: object) -> TensorRef:
    if not (isinstance(storage, StorageRef) and _is_count(offset) and _are_counts(shape) and _are_counts(strides)):
        raise ModelError("the pickle describes a tensor by values that are no storage, offset, shape and strides")
    if len(shape) != len(strides):
        raise ModelError(f"the pickle describes a tensor of {len(shape)} dimensions by {len(strides)} strides")
    return TensorRef(storage, offset, shape, strides)


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _are_counts(values: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(values, tuple) and len(values) <= MOST_DIMENSIONS and all(_is_count(value) for value in values)
