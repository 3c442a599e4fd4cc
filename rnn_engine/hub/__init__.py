"""Models of the Hugging Face Hub: resolve a model's name, download its files, and list the models on this computer."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from rnn_engine import demo
from rnn_engine.errors import InvalidRequestError, ModelError
from rnn_engine.files import cache_folder
from rnn_engine.tensor_files import part_names, without_part

__all__ = ["KNOWN", "LocalModel", "Wanted", "list_local", "locate_model", "model_name"]


WEIGHTS: Final = (".pth", ".safetensors", ".st", ".gguf", ".bin")
_FOLDER_TEXTS: Final = (".json", ".txt")  # in a repository of one model in Hugging Face's form
_FOLDER_WEIGHTS: Final = ("*.safetensors", "pytorch_model*.bin")  # the first kind that exists is taken
_DESCRIPTION: Final = "config.json"
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_DATE: Final = re.compile(r"20\d{6}")
_LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """A repository on the hub that a user named, and perhaps its file, a path or pattern: the newest is used."""

    repository: str
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> Wanted:
        """Parse a model's short name, or `OWNER/REPOSITORY[:FILE]`. Raises InvalidRequestError for any other text."""
        if text in KNOWN:
            return KNOWN[text]
        repository, colon, file = text.partition(":")
        if not _REPOSITORY.fullmatch(repository) or (colon and not file):
            nearest = get_close_matches(text, KNOWN, n=1, cutoff=0.8)
            allowed = f"OWNER/REPOSITORY[:FILE] or one of {', '.join(KNOWN)}"
            advice = f"did you mean {nearest[0]}?" if nearest else f"expected {allowed}"
            raise InvalidRequestError("model", text, allowed, f"unknown model {text!r}; {advice}")
        return cls(repository, file or None)

    def __str__(self) -> str:
        return self.repository if self.file is None else f"{self.repository}:{self.file}"

    def choose(self, paths: Sequence[str]) -> list[str]:
        """Return the wanted ones of a repository's `paths`. Raises ModelError for none, or for several models."""
        weights = [path for path in paths if path.endswith(WEIGHTS)]
        if self.file is not None:
            matches = [path for path in weights if fnmatch(path, self.file)]
            if not matches:
                raise ModelError(f"{self}: no such weights file; {self.repository} has {_listing(weights)}")
            return _with_parts(max(matches, key=age), weights)
        for kind in _FOLDER_WEIGHTS if _DESCRIPTION in paths else ():
            top = [path for path in paths if "/" not in path]
            if matches := [path for path in top if fnmatch(path, kind)]:
                return [path for path in top if path in matches or path.endswith(_FOLDER_TEXTS)]
        if len({part_names(path)[0] for path in weights}) != 1:
            raise ModelError(
                f"{self}: expected one weights file; choose one as {self.repository}:FILE. It has {_listing(weights)}"
            )
        return weights


def _with_parts(path: str, paths: Sequence[str]) -> list[str]:
    """Return a file of weights and, if it is one part of a split model, the other parts that are among `paths`."""
    names = part_names(path)
    return [each for each in paths if each in names]


def age(path: str) -> tuple[str, str]:
    """Return a sort key for a file by the date in its path; newer files have greater keys."""
    dates = _DATE.findall(path)
    return dates[-1] if dates else "", path


def could_be_wanted(text: str) -> bool:
    """Return True if `text`, which is no existing path, could be a model's short name or a repository on the hub."""
    return text in KNOWN or (
        _REPOSITORY.fullmatch(text.partition(":")[0]) is not None and (":" in text or not text.endswith(WEIGHTS))
    )


def _listing(paths: Sequence[str]) -> str:
    if not paths:
        return "none"
    left_out = len(paths) - _LISTED
    newest = sorted(paths, key=age, reverse=True)[:_LISTED]
    return ", ".join(newest) + (f" and {left_out} more" if left_out > 0 else "")


_SERIES: Final = (  # short name, repository, pattern of the file's name, and the sizes, as a file's name has them
    ("rwkv7", "BlinkDL/rwkv7-g1", "rwkv7-g*-{}-20*.pth", "0.1b 0.4b 1.5b 2.9b 7.2b 13.3b"),
    ("rwkv7-world", "BlinkDL/rwkv-7-world", "RWKV-x070-World-{}-*.pth", "0.1B 0.4B 1.5B 2.9B"),
    ("rwkv6", "BlinkDL/rwkv-6-world", "RWKV-x060-World-{}-v*.pth", "1B6 3B 7B 14B"),
    ("rwkv5", "BlinkDL/rwkv-5-world", "RWKV-5-World-{}-v*.pth", "0.1B 0.4B 1B5 3B 7B"),
    ("rwkv4", "BlinkDL/rwkv-4-world", "RWKV-4-World-{}-v*.pth", "0.1B 0.4B 1.5B 3B 7B"),
)
KNOWN: Final[Mapping[str, Wanted]] = {
    f"{name}-{size.lower().rstrip('b').replace('b', '.')}b": Wanted(repository, pattern.format(size))
    for name, repository, pattern, sizes in _SERIES
    for size in sizes.split()
}
"""Models of the Hugging Face Hub by short name: the newest file of each series and size."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A downloaded model on this computer: one file, or a folder of several."""

    repository: str
    path: Path
    num_bytes: int


def models_folder() -> Path:
    """Return the folder for models: RNN_ENGINE_MODELS, or one in the user's cache folder. It may not exist."""
    chosen = os.environ.get("RNN_ENGINE_MODELS")
    return Path(chosen) if chosen else cache_folder() / "models"


def list_local() -> list[LocalModel]:
    """Return all models in `models_folder` and in Hugging Face's cache, sorted by repository and path."""
    found = [
        model for repository, folder, paths in (*_pulled(), *_cached()) for model in _models(repository, folder, paths)
    ]
    return sorted(found, key=lambda model: (model.repository.lower(), str(model.path)))


def locate_model(named: str | Path) -> Path:
    """Return the path of a model, given its path or a name: one of `demo.MODELS`, or one that `rnn-engine pull` takes.

    A `Path`, an existing path, and a text that can't be a model's name are returned as a path. Raises ModelError if
    the text could be a model's name, but no such model is on this computer.
    """
    path = Path(named)
    if named in demo.MODELS and not path.exists():
        return demo.MODELS[str(named)]
    if path.is_dir() and not (path / _DESCRIPTION).exists():
        return model_path(path, [each.name for each in path.glob("*.gguf")])
    if isinstance(named, Path) or path.exists() or not could_be_wanted(named):
        return path
    found = find_local(Wanted.parse(named))
    if found is None:
        raise ModelError(f"{named} is neither a file nor a model that was pulled; `rnn-engine pull {named}` fetches it")
    return found


def model_name(path: Path) -> str:
    """Return a model's default name: that of the file without ending and number of a part, or of the folder."""
    return path.resolve().name if path.is_dir() else without_part(path.stem)


def find_local(wanted: Wanted) -> Path | None:
    """Return the path of a model that is here, or None. Raises ModelError if several files are and none is named."""
    for repository, folder, paths in (*_pulled(), *_cached()):
        if repository.lower() != wanted.repository.lower():
            continue
        try:
            return model_path(folder, wanted.choose(paths))
        except ModelError:
            if wanted.file is None:
                raise
    return None


def model_path(folder: Path, paths: list[str]) -> Path:
    """Return the path to open for a model's files `paths`: the only one, the first part, or else `folder`."""
    weights = sorted({part_names(path)[0] for path in paths if path.endswith(WEIGHTS)})
    return folder / weights[0] if len(weights) == 1 else folder


def _models(repository: str, folder: Path, paths: list[str]) -> Iterator[LocalModel]:
    """Yield the models in `folder`: one for all files `paths`, which are relative to it, or one a file of weights."""
    try:
        groups = [Wanted(repository).choose(paths)]
    except ModelError:
        weights = [path for path in paths if path.endswith(WEIGHTS)]
        groups = [_with_parts(first, weights) for first in sorted({part_names(path)[0] for path in weights})]
    for group in groups:
        size = sum((folder / path).stat().st_size for path in group)
        yield LocalModel(repository, model_path(folder, group), size)


def _pulled() -> Iterator[tuple[str, Path, list[str]]]:
    """Yield the repository, folder and relative file paths of each repository in `models_folder`."""
    folders: dict[Path, list[str]] = defaultdict(list)
    root = models_folder()
    for path in sorted(root.glob("*/*/**/*")):
        if path.is_file():
            owner, name, *rest = path.relative_to(root).parts
            folders[root / owner / name].append("/".join(rest))
    for folder, paths in folders.items():
        yield f"{folder.parent.name}/{folder.name}", folder, paths


def _cached() -> Iterator[tuple[str, Path, list[str]]]:
    """Yield repository, folder and relative paths of each revision in Hugging Face's cache, newest first."""
    from huggingface_hub import scan_cache_dir  # the package takes a third of a second to import
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    for each in repositories:
        if each.repo_type != "model":
            continue
        for revision in sorted(each.revisions, key=lambda revision: revision.last_modified, reverse=True):
            paths = sorted(file.file_path.relative_to(revision.snapshot_path).as_posix() for file in revision.files)
            if any(path.endswith(WEIGHTS) for path in paths):
                yield each.repo_id, Path(revision.snapshot_path), paths
