"""RWKV-4: its tensors, its forward pass in numpy, and its forward pass on a device."""

from rnn_engine.versions.v4.layout import list_layer, make_shape
from rnn_engine.versions.v4.plan import load_layers
from rnn_engine.versions.v4.reference import run_layers

__all__ = ["list_layer", "load_layers", "make_shape", "run_layers"]
