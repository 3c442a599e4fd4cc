"""Which models of the hub are on this computer: in the folder of `rnn-engine pull`, and in Hugging Face's cache."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rnn_engine.errors import ModelError
from rnn_engine.hub.wanted import WEIGHTS, Wanted, could_be_wanted
from rnn_engine.user_cache import cache_folder


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this computer, as one file or as a folder of several."""

    repository: str
    path: Path
    num_bytes: int


def models_folder() -> Path:
    """Return the folder of what was pulled: RNN_ENGINE_MODELS, else one in the user's cache. It may not exist."""
    chosen = os.environ.get("RNN_ENGINE_MODELS")
    return Path(chosen) if chosen else cache_folder() / "models"


def list_local() -> list[LocalModel]:
    """Return every model that was pulled or that Hugging Face's cache holds, by repository and path."""
    found = [
        model for repository, folder, paths in (*_pulled(), *_cached()) for model in _models(repository, folder, paths)
    ]
    return sorted(found, key=lambda model: (model.repository.lower(), str(model.path)))


def locate_model(named: str | Path) -> Path:
    """Return the path of a model that is named by its path, or as `pull` takes it; a `Path` is itself.

    Raises ModelError where the name could be that of a pulled model and nothing with it is here.
    """
    path = Path(named)
    if isinstance(named, Path) or path.exists() or not could_be_wanted(named):
        return path
    found = find_local(Wanted.parse(named))
    if found is None:
        raise ModelError(f"{named} is no file, and no model that was pulled; `rnn-engine pull {named}` fetches it")
    return found


def find_local(wanted: Wanted) -> Path | None:
    """Return where the wanted model is on this computer; None where it is not.

    Raises ModelError where several files of its repository are here and it is not clear which is wanted.
    """
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
    """Return what is opened of a model that has these files: its one file of weights, or the folder of several."""
    weights = [path for path in paths if path.endswith(WEIGHTS)]
    return folder / weights[0] if len(weights) == 1 else folder


def _models(repository: str, folder: Path, paths: list[str]) -> Iterator[LocalModel]:
    """Yield the models of a folder with these files: all of it, or each file of weights by itself."""
    try:
        groups = [Wanted(repository).choose(paths)]
    except ModelError:
        groups = [[path] for path in paths if path.endswith(WEIGHTS)]
    for group in groups:
        size = sum((folder / path).stat().st_size for path in group)
        yield LocalModel(repository, model_path(folder, group), size)


def _pulled() -> Iterator[tuple[str, Path, list[str]]]:
    """Yield repository, folder and files of what was pulled."""
    folders: dict[Path, list[str]] = defaultdict(list)
    root = models_folder()
    for path in sorted(root.glob("*/*/**/*")):
        if path.is_file():
            owner, name, *rest = path.relative_to(root).parts
            folders[root / owner / name].append("/".join(rest))
    for folder, paths in folders.items():
        yield f"{folder.parent.name}/{folder.name}", folder, paths


def _cached() -> Iterator[tuple[str, Path, list[str]]]:
    """Yield repository, folder and files of each revision in Hugging Face's cache, the newest first."""
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
