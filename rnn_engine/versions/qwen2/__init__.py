"""RWKV's time mixing in the body of a Qwen2: QRWKV6 with that of RWKV-6, and ARWKV with that of RWKV-7.

The body has RMS norms, a channel mix without token shift, and no norm after the embedding. QRWKV6 has neither bonus nor
group norm, and heads that share keys and values; ARWKV may lack the group norm and the gate.
"""

from rnn_engine.versions.qwen2.layout import LAYOUT_V6, LAYOUT_V7, ShapeV6Qwen2, ShapeV7Qwen2
from rnn_engine.versions.qwen2.plan import load_layers_v6, load_layers_v7
from rnn_engine.versions.qwen2.reference import run_layers_v6, run_layers_v7

__all__ = [
    "LAYOUT_V6",
    "LAYOUT_V7",
    "ShapeV6Qwen2",
    "ShapeV7Qwen2",
    "load_layers_v6",
    "load_layers_v7",
    "run_layers_v6",
    "run_layers_v7",
]
