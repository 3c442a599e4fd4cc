"""Names and bounds of settings that options, requests and the engine share.

The command line shows them in its help, which must not wait for numpy or a device's library: this module imports
nothing of the kind.
"""

from __future__ import annotations

from typing import Final

MAX_DRAFT: Final = 64
"""The most tokens of a draft."""

DEFAULT_DRAFT: Final = 0
"""The most tokens of a draft, unless the user chose a number; 0 makes no drafts."""

LONGEST_WAIT: Final = 1.0
"""The most seconds that a batching policy may wait for further requests."""

MAX_QUEUED: Final = 1024
"""The most requests that wait for a slot, unless the user chose a number."""

TUNE_SECONDS: Final = 10.0
"""How long the search for the fastest kernels takes at most, unless the user chose a number."""

FORMAT_NAMES: Final = ("f16", "bf16", "f32", "int8", "q8_0", "int4", "q4_1", "q4_0", "nf4", "sf4")
"""The names of the weight formats, in the order of `WEIGHT_FORMATS`, which has the formats themselves."""

STORED: Final = "stored"
"""The weights' choice that keeps each matrix in the float type or the blocks of the file."""

AUTO: Final = "auto"
"""The weights' choice that takes the best format that fits into the device's memory."""

AUTO_FORMATS: Final = ("f16", "int8", "int4")
"""The formats that `AUTO` tries, best first; `STORED` takes the place of f16 for a quantised file."""
