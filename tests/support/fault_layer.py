"""The Vulkan layer of fault_layer.c, which makes a GPU fail: built for this machine, armed by a process under it."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from enum import IntEnum
from pathlib import Path

import pytest

_LIBRARY = "libfault_layer.so"
_NAME = "VK_LAYER_RNN_ENGINE_faults"


class Call(IntEnum):
    """A kind of Vulkan call that can be made to fail, as fault_layer.c numbers them."""

    SUBMIT = 0
    WAIT = 1
    STATUS = 2
    MAP = 3
    ALLOCATE = 4
    CREATE_BUFFER = 5


class FaultLayer:
    """The layer's functions for tests, in a process that runs under it."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(Path(os.environ["VK_LAYER_PATH"]) / _LIBRARY))
        self._library.allocated_bytes.restype = ctypes.c_uint64

    def arm(self, call: Call, after: int = 0) -> None:
        """Have the call of a kind that comes after `after` others fail: as lost, or for the last two as out of memory.

        A device that is lost stays so. One fault of a kind is armed at a time.
        """
        self._library.arm(call, after)

    def disarm(self, call: Call) -> None:
        self._library.arm(call, -1)

    def hang(self, on: bool) -> None:
        """Let all devices seem busy for as long as this is on."""
        self._library.hang(on)

    def count(self, call: Call) -> int:
        """Return how many calls of a kind there have been."""
        return int(self._library.num_calls(call))

    @property
    def struck(self) -> int:
        """How many armed calls have failed."""
        return int(self._library.num_struck())

    @property
    def allocated(self) -> int:
        """The bytes of device memory that this process has allocated."""
        return int(self._library.allocated_bytes())


def build_layer(folder: Path) -> dict[str, str]:
    """Build the layer in `folder`; return the environment for a process under it. Skips the test where it can't be."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("the faults of a GPU need Linux and a C compiler (on Debian or Ubuntu: gcc)")
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-pthread", "-o", folder / _LIBRARY, source], check=True)
    layer = {
        "name": _NAME,
        "type": "GLOBAL",
        "library_path": str(folder / _LIBRARY),
        "api_version": "1.3.0",
        "implementation_version": "1",
        "description": "makes a GPU fail",
    }
    (folder / "fault_layer.json").write_text(json.dumps({"file_format_version": "1.2.0", "layer": layer}))
    return {**os.environ, "VK_LAYER_PATH": str(folder), "VK_INSTANCE_LAYERS": _NAME}
