"""Which model of the hub a name means, and which files of its repository that are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Final

from rnn_engine.errors import InvalidRequestError, ModelError

WEIGHTS: Final = (".pth", ".safetensors", ".st", ".gguf", ".bin")
_FOLDER_TEXTS: Final = (".json", ".txt")  # what a repository of one model in Hugging Face's form has
_FOLDER_WEIGHTS: Final = ("*.safetensors", "pytorch_model*.bin")  # of the first kind that is there
_DESCRIPTION: Final = "config.json"
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_DATE: Final = re.compile(r"20\d{6}")
_LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """A repository, and the files of it that are wanted: a path or shell pattern, of which the newest match counts.

    Without one, the repository has to hold one model.
    """

    repository: str
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> Wanted:
        """Read a short name or `OWNER/REPOSITORY[:FILE]`. Raises InvalidRequestError."""
        if text in KNOWN:
            return KNOWN[text]
        repository, colon, file = text.partition(":")
        if not _REPOSITORY.fullmatch(repository) or (colon and not file):
            raise InvalidRequestError("model", text, f"OWNER/REPOSITORY[:FILE] or one of {', '.join(KNOWN)}")
        return cls(repository, file or None)

    def __str__(self) -> str:
        return self.repository if self.file is None else f"{self.repository}:{self.file}"

    def choose(self, paths: Sequence[str]) -> list[str]:
        """Return those of the repository's paths that are wanted. Raises ModelError where it is not clear which."""
        weights = [path for path in paths if path.endswith(WEIGHTS)]
        if self.file is not None:
            matches = [path for path in weights if fnmatch(path, self.file)]
            if not matches:
                raise ModelError(f"{self}: no such file of weights; {self.repository} has {_listing(weights)}")
            return [max(matches, key=age)]
        for kind in _FOLDER_WEIGHTS if _DESCRIPTION in paths else ():
            top = [path for path in paths if "/" not in path]
            if matches := [path for path in top if fnmatch(path, kind)]:
                return [path for path in top if path in matches or path.endswith(_FOLDER_TEXTS)]
        if len(weights) != 1:
            raise ModelError(f"{self}: which file? Give {self.repository}:FILE; it has {_listing(weights)}")
        return weights


def age(path: str) -> tuple[str, str]:
    """Return a key that is greater for newer files, by the date in a name."""
    dates = _DATE.findall(path)
    return dates[-1] if dates else "", path


def could_be_wanted(text: str) -> bool:
    """Whether `text`, which is no path, could be a short name or a repository."""
    return text in KNOWN or (
        _REPOSITORY.fullmatch(text.partition(":")[0]) is not None and (":" in text or not text.endswith(WEIGHTS))
    )


def _listing(paths: Sequence[str]) -> str:
    if not paths:
        return "none"
    left_out = len(paths) - _LISTED
    newest = sorted(paths, key=age, reverse=True)[:_LISTED]
    return ", ".join(newest) + (f" and {left_out} more" if left_out > 0 else "")


def _sizes(name: str, repository: str, pattern: str, sizes: Mapping[str, str]) -> dict[str, Wanted]:
    """Return the models of a series: what its short names end with, and how its files write the size."""
    return {f"{name}-{short}": Wanted(repository, pattern.format(written)) for short, written in sizes.items()}


KNOWN: Final[Mapping[str, Wanted]] = {
    **_sizes(
        "rwkv7",
        "BlinkDL/rwkv7-g1",
        "rwkv7-g*-{}-20*.pth",
        {size: size for size in ("0.1b", "0.4b", "1.5b", "2.9b", "7.2b", "13.3b")},
    ),
    **_sizes(
        "rwkv7-world",
        "BlinkDL/rwkv-7-world",
        "RWKV-x070-World-{}-*.pth",
        {"0.1b": "0.1B", "0.4b": "0.4B", "1.5b": "1.5B", "2.9b": "2.9B"},
    ),
    **_sizes(
        "rwkv6",
        "BlinkDL/rwkv-6-world",
        "RWKV-x060-World-{}-v*.pth",
        {"1.6b": "1B6", "3b": "3B", "7b": "7B", "14b": "14B"},
    ),
    **_sizes(
        "rwkv5",
        "BlinkDL/rwkv-5-world",
        "RWKV-5-World-{}-v*.pth",
        {"0.1b": "0.1B", "0.4b": "0.4B", "1.5b": "1B5", "3b": "3B", "7b": "7B"},
    ),
    **_sizes(
        "rwkv4",
        "BlinkDL/rwkv-4-world",
        "RWKV-4-World-{}-v*.pth",
        {"0.1b": "0.1B", "0.4b": "0.4B", "1.5b": "1.5B", "3b": "3B", "7b": "7B"},
    ),
}
"""Models by short name: the newest file of each series and size."""
