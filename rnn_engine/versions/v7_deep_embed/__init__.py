"""RWKV-7 with DeepEmbed: every layer has a table with an entry for each token, which scales the channel mix.

BlinkDL's `rwkv` package runs it under RWKV_DE_VERSION=1.
"""

from rnn_engine.versions.v7_deep_embed.layout import list_tensors, make_shape
from rnn_engine.versions.v7_deep_embed.plan import load_layers
from rnn_engine.versions.v7_deep_embed.reference import run_layers

__all__ = ["list_tensors", "load_layers", "make_shape", "run_layers"]
