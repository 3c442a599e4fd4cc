"""Draw tokens from rows of logits, exactly, from a step's few candidates wherever they suffice."""

from rnn_engine.sampling.logprobs import top_logprobs
from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.rows import LogitRow
from rnn_engine.sampling.sampler import Draw, Sampler, random_seed

__all__ = ["Draw", "LogitRow", "Sampler", "SamplingParams", "random_seed", "top_logprobs"]
