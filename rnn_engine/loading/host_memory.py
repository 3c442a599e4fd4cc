"""How much memory this computer has for a model."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path


def find_host_memory() -> int | None:
    """Return the bytes of this computer's memory that are free, or all of them where only these are known."""
    if sys.platform == "win32":
        return _windows_memory()
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return _physical_memory()


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _windows_memory() -> int | None:
    status = (ctypes.c_uint64 * 8)()  # struct MEMORYSTATUSEX: two words of 32 bits, then seven numbers
    ctypes.cast(status, ctypes.POINTER(ctypes.c_uint32))[0] = ctypes.sizeof(status)
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009
    return int(status[2]) if kernel.GlobalMemoryStatusEx(status) else None
