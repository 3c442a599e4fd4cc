"""RWKV-7 with DeepEmbed: each layer has an embedding table, whose entry for a token scales the channel mix."""

from rnn_engine.versions.v7_deep_embed.layout import list_tensors, make_shape
from rnn_engine.versions.v7_deep_embed.plan import load_layers
from rnn_engine.versions.v7_deep_embed.reference import run_layers

__all__ = ["list_tensors", "load_layers", "make_shape", "run_layers"]
