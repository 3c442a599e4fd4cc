"""RWKV-6: its tensors, its forward and backward passes in numpy, and its forward pass on a device."""

from rnn_engine.versions.v6.layout import list_layer, make_shape
from rnn_engine.versions.v6.plan import load_backward, load_layers
from rnn_engine.versions.v6.reference import run_backward, run_layers

__all__ = ["list_layer", "load_backward", "load_layers", "make_shape", "run_backward", "run_layers"]
