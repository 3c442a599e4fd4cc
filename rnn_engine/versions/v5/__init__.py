"""RWKV-5 in its versions 5.0 (without a gate), 5.1 (with a gate) and 5.2 (with a decay for each channel).

The names are those of BlinkDL's `rwkv` package. rwkv.cpp calls 5.0 "5.1".
"""

from rnn_engine.versions.v5.layout import ShapeV5, VersionV5, find_version, make_layout
from rnn_engine.versions.v5.plan import load_backward, load_layers
from rnn_engine.versions.v5.reference import run_backward, run_layers

__all__ = [
    "ShapeV5",
    "VersionV5",
    "find_version",
    "load_backward",
    "load_layers",
    "make_layout",
    "run_backward",
    "run_layers",
]
