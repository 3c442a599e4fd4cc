"""A path that came in a request, held to one folder."""

from __future__ import annotations

import re
from pathlib import Path

from rnn_engine.checks import is_inner_path
from rnn_engine.errors import InvalidRequestError, NotFoundError

_OWN_FILE = re.compile(r"[0-9a-f-]{32,}\.state", re.IGNORECASE)
"""Persistent states, called after their ids, and those of a cache in the same folder, after a hash of their tokens."""


def confined_path(folder: Path | None, requested: str, field: str) -> Path:
    """The file at `requested`, relative to `folder` or to where the server runs, inside `folder`, symbolic links
    followed.

    Raises InvalidRequestError, which names `field`, where the path leaves the folder or where there is no folder to
    read from; NotFoundError where no file is there, or one that the server keeps for itself: whoever may have that
    state has it by its name, and what others have asked before nobody may try by a hash.
    """
    if folder is None:
        raise InvalidRequestError(field, requested, "no path at all: no folder of state files is configured")
    allowed = "a relative path inside the folder of state files"
    if not is_inner_path(requested):
        raise InvalidRequestError(field, requested, allowed)
    root = folder.resolve()
    try:
        target = next(
            (
                path
                for base in (root, Path.cwd())
                if (path := (base / requested).resolve()).is_relative_to(root) and path.is_file()
            ),
            (root / requested).resolve(),
        )
    except (OSError, RuntimeError) as error:  # a loop of links: the one or the other, by the version of Python
        raise InvalidRequestError(field, requested, allowed) from error
    if not target.is_relative_to(root):
        raise InvalidRequestError(field, requested, allowed)
    try:
        found = target.is_file()
    except OSError as error:  # a name that is too long
        raise InvalidRequestError(field, requested, allowed) from error
    if not found or _OWN_FILE.fullmatch(target.name):
        raise NotFoundError(f"{field}: no state file {requested!r} in the folder of state files")
    return target
