"""RWKV-7: its tensors, and its forward and backward passes in numpy and on a device."""

from rnn_engine.versions.v7.layout import list_layer, make_shape
from rnn_engine.versions.v7.plan import load_backward, load_layers
from rnn_engine.versions.v7.reference import run_backward, run_layers

__all__ = ["list_layer", "load_backward", "load_layers", "make_shape", "run_backward", "run_layers"]
