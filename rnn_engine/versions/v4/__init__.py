"""RWKV-4."""

from rnn_engine.versions.v4.plan import load_layers
from rnn_engine.versions.v4.reference import run_layers
from rnn_engine.versions.v4.shape import make_shape
from rnn_engine.versions.v4.tensors import list_tensors

__all__ = ["list_tensors", "load_layers", "make_shape", "run_layers"]
