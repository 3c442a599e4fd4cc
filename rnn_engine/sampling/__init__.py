"""Sampling: draw tokens from rows of logits, from a row's few top candidates if these determine the draw.

A draw from candidates yields the same token as one from the whole row.
"""

from rnn_engine.sampling.masks import AllowedTokens, Mask, SequenceMask, TokenMask, stack_masks
from rnn_engine.sampling.params import Sampler, SamplingParams
from rnn_engine.sampling.ranking import Ranking, top_logprobs
from rnn_engine.sampling.rows import LogitRow, MixKind, RowSource, RunRows, SequenceContext, mix_logits
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
