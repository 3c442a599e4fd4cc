"""The models and token sequences that the golden files cover."""

from __future__ import annotations

from dataclasses import dataclass

from rnn_engine.types import ModelShape
from rnn_engine.versions.v7.layout import AdapterRanks
from tests.support.models import deep_embedded, tiny_shape
from tests.support.older_models import tiny_v4, tiny_v5, tiny_v6


@dataclass(frozen=True, slots=True)
class Case:
    """One model with random weights, and the number of random tokens to run through it."""

    name: str
    shape: ModelShape
    seed: int
    num_tokens: int
    layer0_v: bool = True  # True if the file holds layer 0's v0, v1, v2, which are never read


CASES = (
    Case(
        "v7-one-layer-head16",
        tiny_shape(layers=1, width=32, head_size=16, vocab=12, ranks=AdapterRanks(w=4, a=8, v=2, g=16)),
        seed=701,
        num_tokens=300,  # more than 8 bits count
        layer0_v=False,
    ),
    Case(
        "v7-deep-head16-odd-sizes",
        tiny_shape(layers=5, width=48, head_size=16, ffn=100, vocab=12, ranks=AdapterRanks(w=5, a=7, v=3, g=9)),
        seed=702,
        num_tokens=61,
    ),
    Case(
        "v7-vocab500-head16",
        tiny_shape(layers=3, width=64, head_size=16, ffn=224, vocab=500, ranks=AdapterRanks(w=16, a=12, v=8, g=24)),
        seed=703,
        num_tokens=70,
    ),
    Case(
        "v7-head32",
        tiny_shape(layers=2, width=96, head_size=32, ffn=160, vocab=12, ranks=AdapterRanks(w=8, a=8, v=8, g=8)),
        seed=704,
        num_tokens=33,
        layer0_v=False,
    ),
    Case(
        "v7-vocab500-head64",
        tiny_shape(layers=2, width=128, head_size=64, ffn=192, vocab=500, ranks=AdapterRanks(w=24, a=16, v=8, g=40)),
        seed=705,
        num_tokens=50,
    ),
    Case(
        "v7-single-head128",
        tiny_shape(layers=2, width=128, head_size=128, ffn=128, vocab=12, ranks=AdapterRanks(w=6, a=10, v=4, g=12)),
        seed=706,
        num_tokens=25,
    ),
    Case(
        "v6-one-layer-head16",
        tiny_v6(layers=1, width=48, head_size=16, ffn=72, vocab=12, mix_rank=4, decay_rank=8),
        seed=601,
        num_tokens=300,  # more than 8 bits count
    ),
    Case(
        "v6-deep-head32-odd-sizes",
        tiny_v6(layers=13, width=32, head_size=32, ffn=52, vocab=12, mix_rank=3, decay_rank=5),
        seed=602,
        num_tokens=40,
    ),
    Case(
        "v6-vocab256-head64",
        tiny_v6(layers=2, width=64, head_size=64, ffn=200, vocab=256, mix_rank=8, decay_rank=16),
        seed=603,
        num_tokens=33,
    ),
    Case(
        "v5.2-one-layer-head16",
        tiny_v5("v5.2", layers=1, width=48, head_size=16, ffn=72, vocab=12),
        seed=521,
        num_tokens=300,
    ),
    Case(
        "v5.2-deep-head16-odd-sizes",
        tiny_v5("v5.2", layers=13, width=32, head_size=16, ffn=52, vocab=12),
        seed=522,
        num_tokens=40,
    ),
    Case("v5.1-head24", tiny_v5("v5.1", layers=2, width=72, head_size=24, ffn=100, vocab=12), seed=511, num_tokens=70),
    Case("v5.0-head32", tiny_v5("v5.0", layers=2, width=96, head_size=32, ffn=100, vocab=12), seed=501, num_tokens=70),
    Case("v4-one-layer", tiny_v4(layers=1, width=40, ffn=72, vocab=12), seed=401, num_tokens=300),
    Case("v4-deep-odd-sizes", tiny_v4(layers=13, width=24, ffn=52, vocab=12), seed=402, num_tokens=40),
    Case("v4-vocab256", tiny_v4(layers=2, width=72, ffn=100, vocab=256), seed=403, num_tokens=50),
    Case(
        "v7-deepembed-head16",
        deep_embedded(
            tiny_shape(layers=2, width=48, head_size=16, ffn=100, vocab=12, ranks=AdapterRanks(w=5, a=7, v=3, g=9))
        ),
        seed=707,
        num_tokens=60,
    ),
)
