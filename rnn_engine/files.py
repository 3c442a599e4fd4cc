"""Write files and folders atomically, and small JSON records with a digest: readers find the old or the new content.

`read_text` reads the texts that users write with any editor.

A folder that was written here has a list of its contents, `.rnn-engine.json`. A folder with any content that differs
from its list is the user's, and is never replaced.
"""

from __future__ import annotations

import codecs
import ctypes
import glob
import hashlib
import io
import json
import os
import shutil
import stat
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, TypeAlias

from rnn_engine.errors import InvalidRequestError

TEMPORARY_SUFFIX = ".partial"
"""The ending of the names of unfinished files. A crash may leave some; delete them only if nobody is writing."""

_OPEN_FILES = ("/dev/fd/", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/proc/self/fd/")
_LIST = ".rnn-engine.json"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # Linux's

_Contents: TypeAlias = dict[str, list[int]]
"""The contents of a folder: relative path -> size in bytes and time of the last change (ns); empty for a subfolder."""


_OTHER_MARKS: Final = {
    codecs.BOM_UTF32_LE: "UTF-32",  # first, since UTF-16's begins alike
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def read_text(path: Path) -> str:
    """Return a user's UTF-8 text with plain line ends, without a byte-order mark. Raises OSError, or UnicodeError."""
    data = io.BytesIO(path.read_bytes())  # whole, since it may be a pipe
    skip_mark(data)
    return io.TextIOWrapper(data, "utf-8").read()


def skip_mark(file: BinaryIO) -> int:
    """Skip a byte-order mark; return the position. Raises UnicodeDecodeError for that of another encoding."""
    begin = file.read(max(map(len, _OTHER_MARKS)))
    for mark, name in _OTHER_MARKS.items():
        if begin.startswith(mark):
            raise UnicodeDecodeError("utf-8", mark, 0, len(mark), f"the file is in {name}; expected UTF-8")
    return file.seek(len(codecs.BOM_UTF8) if begin.startswith(codecs.BOM_UTF8) else 0)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file, which replaces `path` when the `with` block ends, or is deleted if the block raises.

    The content is on the disk when the block has been left. Raises OSError at once if the folder can't be written to,
    and at the end if the disk has no room. OSError is also raised if only the rename could not be synced to the disk;
    the new content is in place then.
    """
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with _create(unfinished) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):  # the first error is raised
            unfinished.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def output_file(path: Path) -> Iterator[IO[bytes]]:
    """Open the file that a user named as an output, as `atomic_file` does.

    If it is a link, the file that it names is replaced. What is no regular file, such as a device or a pipe, is written
    in place when the block ends, which waits for a reader of a pipe.
    """
    if not is_special(path):
        with atomic_file(Path(os.path.realpath(path))) as file:
            yield file
        return
    with tempfile.NamedTemporaryFile() as whole:  # a pipe can't be sought in
        yield whole.file
        whole.seek(0)
        with path.open("wb") as file:
            shutil.copyfileobj(whole, file)


def is_special(path: Path) -> bool:
    """Return True if `path` is there and is neither a file nor a folder, or names an open file, as /dev/stdout does."""
    if os.path.abspath(path).startswith(_OPEN_FILES):
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def is_same_file(path: Path, other: Path) -> bool:
    """Return True if two paths lead, or would lead, to the same file or folder, also by links and other spellings."""
    with suppress(OSError):
        return path.samefile(other)
    return os.path.normcase(os.path.realpath(path)) == os.path.normcase(os.path.realpath(other))


def _create(path: Path) -> IO[bytes]:
    return path.open("xb")


def append(file: IO[bytes], data: bytes) -> None:
    """Write `data` at the end of an unbuffered file, or nothing if the disk has no room for it. Raises OSError then."""
    rest, written = memoryview(data), 0
    try:
        while written < len(data):
            written += file.write(rest[written:]) or 0
    except OSError:
        end = file.seek(0, os.SEEK_END) - written
        file.truncate(end)
        file.seek(end)
        raise


@contextmanager
def atomic_folder(path: Path, field: str) -> Iterator[Path]:
    """Make a temporary folder, which replaces `path` when the `with` block ends, or is deleted if the block raises.

    An existing `path` is replaced if it is an empty folder, or one that this function wrote and nobody has changed
    since. Raises InvalidRequestError, which names `field`, for anything else, before the block and again after it.
    Raises OSError if the folder can't be written.
    """
    _check_replaceable(path, field)
    unfinished = path.with_name(f".{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        unfinished.mkdir()
        yield unfinished
        contents = _contents(unfinished)
        with atomic_file(unfinished / _LIST) as file:
            file.write(json.dumps({"files": contents}, indent=1).encode())
        _check_replaceable(path, field)
        _put_in_place(unfinished, path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _check_replaceable(path: Path, field: str) -> None:
    """Raise InvalidRequestError for `field` if `path` is a file, a link, or a folder with the user's own content."""
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        reason = "is a link" if path.is_symlink() else "is a file"
    else:
        listed = _read_list(path)
        foreign = (
            name for name, entry in sorted(_contents(path).items()) if name != _LIST and listed.get(name) != entry
        )
        reason = f"holds {name!r}" if (name := next(foreign, None)) is not None else ""
    if reason:
        allowed = "a name that does not exist yet, or a folder that rnn-engine wrote and that is unchanged"
        message = f"{field}: {path} is not replaced, since it {reason}; expected {allowed}"
        raise InvalidRequestError(field, str(path), allowed, message)


def _contents(folder: Path) -> _Contents:
    found: _Contents = {}
    pending = [str(folder)]
    while pending:  # no recursion, whatever the depth
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                name = Path(entry.path).relative_to(folder).as_posix()
                if entry.is_dir(follow_symlinks=False):
                    found[name] = []
                    pending.append(entry.path)
                else:
                    facts = entry.stat(follow_symlinks=False)
                    found[name] = [facts.st_size, facts.st_mtime_ns]
    return found


def _read_list(folder: Path) -> _Contents:
    """Return the files that the `.rnn-engine.json` in `folder` lists; none if that file is missing or damaged."""
    try:
        content = json.loads((folder / _LIST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    files = content.get("files") if isinstance(content, dict) else None
    return files if isinstance(files, dict) else {}


def _put_in_place(unfinished: Path, path: Path) -> None:
    """Rename the folder `unfinished` to `path`. An earlier folder at `path` is replaced, or restored if that fails.

    If the system can't exchange two folders in one step, there is nothing at `path` for a moment. A crash at that
    moment leaves the earlier folder beside it, with `.old` at the end of its name.
    """
    if not path.exists():
        unfinished.rename(path)
    elif not _exchange(unfinished, path):  # else the caller deletes the earlier folder, which is `unfinished` now
        old = path.with_name(f"{path.name}.{uuid.uuid4().hex}.old")
        path.rename(old)
        try:
            unfinished.rename(path)
        except BaseException:
            with suppress(OSError):
                old.rename(path)
            raise
        shutil.rmtree(old, ignore_errors=True)
    _sync_folder(path.parent)


def _exchange(path: Path, other: Path) -> bool:
    """Exchange two folders atomically. Return False, with nothing done, if the operating system can't do that."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # an old C library
            renameat2 = ctypes.CDLL(None).renameat2
            done: int = renameat2(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
            return done == 0
    return False


def delete_file(path: Path) -> None:
    """Delete a file if it exists, and sync its folder if possible. Raises OSError if it can't be deleted."""
    path.unlink(missing_ok=True)
    with suppress(OSError):  # the file is gone, and only a crash of the system could bring it back
        _sync_folder(path.parent)


def delete_unfinished(path: Path) -> None:
    """Delete the temporary files of `path` that `atomic_file` has left in crashes. Nobody may be writing the file."""
    for unfinished in path.parent.glob(f"{glob.escape(path.name)}.*{TEMPORARY_SUFFIX}"):
        unfinished.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Flush the entries of `folder` to the disk, so that a rename or deletion in it survives a crash."""
    if os.name != "posix":  # elsewhere a folder can't be opened, and a rename needs no sync
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_SHOWN_DIGITS: Final = 16  # of a record's digest


def cache_folder() -> Path:
    """Return the folder for this project's files within the user's cache folder; it may not exist."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rnn-engine"


def short_digest(text: str, digits: int = 32) -> str:
    """Return the first `digits` hexadecimal digits of the SHA-256 of `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def read_record(path: Path) -> dict[str, Any] | None:
    """Return the dict that `write_record` wrote to `path`; None if the file is missing, damaged or something else."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    digest = content.pop("digest", None)
    return content if digest == _digest(content) else None


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON values to a file, with a digest that `read_record` checks. Raises OSError if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(json.dumps({**content, "digest": _digest(content)}).encode())


def _digest(content: Mapping[str, Any]) -> str:
    return short_digest(json.dumps(content, sort_keys=True), _SHOWN_DIGITS)
