"""How many files and sockets the process may have open."""

from __future__ import annotations

import importlib
import logging
from contextlib import suppress
from dataclasses import replace

from server.connections.settings import ConnectionSettings

_ENOUGH = 65536  # where the system says that there is no limit
_log = logging.getLogger(__name__)


def fit_descriptors(settings: ConnectionSettings) -> ConnectionSettings:
    """Raise the process's limit of open files; return the settings with no more connections than half of it."""
    limit = raise_descriptor_limit()
    if limit is None or limit // 2 >= settings.max_connections:
        return settings
    most = limit // 2
    _log.warning("%d connections at most, not %d: the process may open %d files", most, settings.max_connections, limit)
    return replace(settings, max_connections=most)


def raise_descriptor_limit() -> int | None:
    """Raise the limit of open files as far as the system allows, and return it; None where there is none (Windows)."""
    try:
        resource = importlib.import_module("resource")
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else int(soft)
