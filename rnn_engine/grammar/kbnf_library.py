"""The library kbnf without torch, which it imports wherever torch is installed, at the cost of seconds and memory."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import cast

_IS_LOADED = "torch" in sys.modules
if not _IS_LOADED:
    sys.modules["torch"] = cast(ModuleType, None)  # importing it fails, for which kbnf is prepared
try:
    import kbnf as kbnf
finally:
    if not _IS_LOADED:
        del sys.modules["torch"]
