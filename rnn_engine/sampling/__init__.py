"""Draw tokens from rows of logits, exactly, from a step's few candidates wherever they suffice."""

from rnn_engine.sampling.context import SequenceContext
from rnn_engine.sampling.logprobs import top_logprobs
from rnn_engine.sampling.masks import AllowedTokens, Mask, SequenceMask, TokenMask, stack_masks
from rnn_engine.sampling.mixing import MixKind, mix_logits
from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.protocol import Sampler
from rnn_engine.sampling.ranking import Ranking
from rnn_engine.sampling.rows import LogitRow, RowSource, RunRows
from rnn_engine.sampling.sequence_sampler import Draw, SequenceSampler, random_seed
from rnn_engine.sampling.together import JointDraws

__all__ = [
    "AllowedTokens",
    "Draw",
    "JointDraws",
    "LogitRow",
    "Mask",
    "MixKind",
    "Ranking",
    "RowSource",
    "RunRows",
    "Sampler",
    "SamplingParams",
    "SequenceContext",
    "SequenceMask",
    "SequenceSampler",
    "TokenMask",
    "mix_logits",
    "random_seed",
    "stack_masks",
    "top_logprobs",
]
