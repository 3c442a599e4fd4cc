"""Download models' files from the Hugging Face Hub, resume interrupted downloads, and verify checksums."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import WeakFileLock, build_hf_headers, disable_progress_bars

from rnn_engine.errors import ModelError, RnnEngineError, hide_credentials, is_inner_path
from rnn_engine.hub import Wanted, model_path, models_folder

_HUB: Final = "https://huggingface.co"
_DIGEST: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # git's SHA-1, or SHA-256


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository on the hub at one commit: its path there, size and checksum."""

    path: str
    num_bytes: int
    digest: str  # SHA-256 of large files, which the hub stores separately; else git's id of the file


@dataclass(frozen=True, slots=True)
class Download:
    """A planned download: the files of a model, and the folder for them."""

    repository: str
    commit: str
    folder: Path
    files: tuple[RemoteFile, ...]

    def target(self, file: RemoteFile) -> Path:
        return self.folder / file.path

    def num_done(self, file: RemoteFile) -> int:
        """Return how many bytes of a file are on this computer."""
        target = self.target(file)
        with suppress(FileNotFoundError):
            return _part_of(target, file).stat().st_size
        with suppress(FileNotFoundError):
            return target.stat().st_size
        return 0


class Hub:
    """A client that downloads models from the Hugging Face Hub, or from a mirror of it that HF_ENDPOINT names."""

    def __init__(self, *, shows_progress: bool = True, folder: Path | None = None) -> None:
        """`shows_progress`: a download draws a bar for each file on stderr. `folder`: in place of `models_folder`."""
        if not shows_progress:
            disable_progress_bars()
        self._endpoint = os.environ.get("HF_ENDPOINT", _HUB).rstrip("/")
        self._place = hide_credentials(self._endpoint)  # for messages
        self._api = HfApi(endpoint=self._endpoint)
        self._folder = models_folder() if folder is None else folder

    def pull(self, wanted: Wanted) -> Path:
        """Download those files of a model that are missing, and return the path to open. Raises ModelError."""
        return self.fetch(self.plan(wanted))

    def plan(self, wanted: Wanted) -> Download:
        """Look up a model's files. Raises ModelError if there are none, or if one would leave the model's folder."""
        with self._in_words(wanted.repository):
            commit, files = self._list_files(wanted.repository)
        chosen = tuple(files[path] for path in wanted.choose(list(files)))
        download = Download(wanted.repository, commit, self._folder / wanted.repository, chosen)
        for file in chosen:
            self._check(wanted.repository, file, download.folder)
        return download

    def fetch(self, download: Download) -> Path:
        """Download files, except for those that are already here, and return the path to open.

        Draws a progress bar for each file on stderr. If this ends early, the incomplete file is kept, and the next call
        resumes it. Raises ModelError if a file can't be downloaded or does not have the checksum that the hub lists.
        """
        for file in download.files:
            target = download.target(file)
            with self._in_words(download.repository):
                target.parent.mkdir(parents=True, exist_ok=True)
                with WeakFileLock(_lock_of(target)):
                    self._fetch(download.repository, download.commit, file, target)
        return model_path(download.folder, [file.path for file in download.files])

    def _check(self, repository: str, file: RemoteFile, folder: Path) -> None:
        """Raise ModelError if a file would be written outside of `folder`, or if its checksum is of an unknown kind."""
        if not is_inner_path(file.path):
            raise ModelError(
                f"{repository}: {self._place} lists a file {file.path!r}; expected a path inside of the repository"
            )
        if not _DIGEST.fullmatch(file.digest):
            raise ModelError(
                f"{repository}: {self._place} gives {file.digest!r} as the checksum of {file.path}; expected a "
                "SHA-1 or SHA-256"
            )
        target = folder / file.path
        for path in (target, _part_of(target, file), _lock_of(target)):
            if not (place := Path(os.path.realpath(path))).is_relative_to(os.path.realpath(folder)):
                raise ModelError(
                    f"{repository}: {file.path} would be written to {place}; expected a place in {folder}, "
                    "without links that lead out of it"
                )

    def _list_files(self, repository: str) -> tuple[str, dict[str, RemoteFile]]:
        """Return the id of a repository's newest commit, and a map from path to file in that commit."""
        found = self._api.model_info(repository, files_metadata=True)
        files = {
            each.rfilename: RemoteFile(
                each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else each.blob_id or ""
            )
            for each in found.siblings or ()
        }
        return found.sha or "main", files

    def _fetch(self, repository: str, commit: str, file: RemoteFile, target: Path) -> None:
        if target.is_file() and target.stat().st_size == file.num_bytes and _digest(target, file) == file.digest:
            return
        part = _part_of(target, file)
        done = part.stat().st_size if part.is_file() else 0
        if done > file.num_bytes:
            part.unlink()
            done = 0
        free = shutil.disk_usage(target.parent).free
        if free < file.num_bytes - done:
            raise ModelError(
                f"{target.parent} has room for {free:,} bytes, and {file.path} needs {file.num_bytes - done:,} more; "
                "set RNN_ENGINE_MODELS to use another folder"
            )
        url = hf_hub_url(repository, file.path, revision=commit, endpoint=self._endpoint)
        with part.open("ab") as opened:
            http_get(
                url,
                opened,
                resume_size=done,
                headers=build_hf_headers(),
                expected_size=file.num_bytes,
                displayed_filename=file.path,
            )
        if (found := _digest(part, file)) != file.digest:
            part.unlink()
            raise ModelError(
                f"{repository}: {file.path} has the checksum {found}, but {self._place} gives {file.digest}; "
                "the downloaded file was removed: pull it again"
            )
        part.replace(target)

    @contextmanager
    def _in_words(self, repository: str) -> Iterator[None]:
        """Within the `with` block, turn errors of the Hugging Face Hub's client into ModelError in plain words."""
        try:
            yield
        except (RnnEngineError, KeyboardInterrupt):
            raise
        except GatedRepoError as error:
            raise ModelError(
                f"{repository}: its owner grants access on request; accept the terms at {self._place}/{repository} "
                "and set HF_TOKEN"
            ) from error
        except RepositoryNotFoundError as error:
            raise ModelError(
                f"{repository}: {self._place} has no such repository, or it is private and HF_TOKEN gives no access"
            ) from error
        except HfHubHTTPError as error:
            raise ModelError(f"{repository}: {self._place} refused: {_first_line(error)}") from error
        except OfflineModeIsEnabled as error:
            raise ModelError(f"{repository}: HF_HUB_OFFLINE is set, so nothing is fetched") from error
        except OSError as error:
            raise ModelError(f"{repository}: {_first_line(error)}") from error
        except Exception as error:  # errors of its HTTP library, which differs between versions
            raise ModelError(
                f"{repository}: {self._place} can't be reached: {_first_line(error)}. Check the network, "
                "or set HF_ENDPOINT to a mirror. The parts downloaded so far are kept"
            ) from error


def _part_of(target: Path, file: RemoteFile) -> Path:
    return target.with_name(f".{target.name}.{file.digest[:12]}.part")


def _lock_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.lock")


def _first_line(error: Exception) -> str:
    return hide_credentials((str(error) or type(error).__name__).splitlines()[0])


def _digest(path: Path, file: RemoteFile) -> str:
    """Return the digest of the file at `path`: SHA-256 or git's SHA-1, whichever `file.digest` is."""
    if len(file.digest) == hashlib.sha256().digest_size * 2:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: digest).hexdigest()
