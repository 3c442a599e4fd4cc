"""Rows of logits as a runner returns them, and examples of rows and parameters to draw with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from rnn_engine.sampling.chain import ORDER
from rnn_engine.sampling.masks import Mask, allowed_tokens
from rnn_engine.sampling.params import Ai00Mirostat, Ai00Sampler, Ai00Typical, SamplingParams
from rnn_engine.sampling.ranking import LogitRow
from rnn_engine.types import F32

LOGSUMEXP_ERROR = 5e-6  # the greatest error of an f32 sum on a device


@dataclass
class Device:
    """Rows as a runner returns them, with a count of the whole rows that were read."""

    num_candidates: int
    error: float = 0.0
    rows_read: int = 0

    def row(self, logits: F32, mask: Mask | None = None) -> LogitRow:
        allowed = np.arange(len(logits)) if mask is None else allowed_tokens(mask, len(logits))
        ids = allowed[np.argsort(-logits[allowed], kind="stable")][: self.num_candidates].astype(np.int32)

        def read_full() -> F32:
            self.rows_read += 1
            return logits

        return LogitRow(
            ids=ids,
            logits=logits[ids],
            logsumexp=self._logsumexp(logits),
            vocab_size=len(logits),
            read_full=read_full,
            num_allowed=len(allowed),
            allowed_logsumexp=self._logsumexp(logits[allowed]),
            mask=mask,
        )

    def _logsumexp(self, logits: F32) -> float:
        return float(np.logaddexp.reduce(logits.astype(np.float64))) + self.error


def make_row(seed: int, vocab_size: int) -> F32:
    """Return ordinary logits, many equal ones, or steep ones. Sometimes a few tokens are ruled out."""
    generator = np.random.default_rng(seed)
    spread = generator.choice([1.0, 3.0, 30.0])
    row = generator.normal(0.0, spread, vocab_size)
    if generator.random() < 0.4:
        row = generator.integers(-2, 3, vocab_size).astype(np.float64)
    if generator.random() < 0.2:
        row[generator.random(vocab_size) < 0.5] = -np.inf
        row[generator.integers(vocab_size)] = 0.0
    return row.astype(np.float32)


@st.composite
def params(draw: st.DrawFn, vocab_size: int) -> SamplingParams:
    penalties = st.sampled_from([0.0, 0.0, 0.3, 2.0, 40.0, -1.5])
    return SamplingParams(
        repeat_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.7])),
        repeat_last_n=draw(st.sampled_from([-1, 2])),
        temperature=draw(st.sampled_from([0.0, 5e-324, 0.05, 0.7, 1.0, 1.0, 1.6, 100.0])),
        top_p=draw(st.one_of(st.sampled_from([0.0, 0.5, 1.0, 1.0]), st.floats(0.0, 1.0))),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 5, 128])),
        presence_penalty=draw(penalties),
        frequency_penalty=draw(penalties),
        penalty_decay=draw(st.sampled_from([0.0, 0.9, 1.0])),
        logit_bias=draw(
            st.dictionaries(
                st.integers(0, vocab_size - 1), st.sampled_from([-1000.0, -2.0, 0.0, 1.5, 8.0, 1000.0]), max_size=4
            )
        ),
    )


@st.composite
def chains(draw: st.DrawFn, vocab_size: int) -> SamplingParams:
    """Draw parameters of llama-server's steps, of mirostat or of ai00's samplers."""
    kind = draw(st.sampled_from(["chain", "chain", "chain", "mirostat", "ai00"]))
    bias = draw(st.dictionaries(st.integers(0, vocab_size - 1), st.sampled_from([-np.inf, -2.0, 1.5]), max_size=2))
    temperature = draw(st.sampled_from([0.0, 0.05, 0.7, 1.0, 1.0, 1.6]))
    if kind == "ai00":
        sampler: st.SearchStrategy[Ai00Sampler] = st.sampled_from(
            [Ai00Typical(), Ai00Typical(tau=0.9, top_k=3), Ai00Mirostat(), Ai00Mirostat(0.5, 1.0)]
        )
        return SamplingParams(sampler=draw(sampler), logit_bias=bias)
    if kind == "mirostat":
        tau = draw(st.sampled_from([0.5, 2.0, 5.0]))
        version = draw(st.sampled_from([1, 2]))
        return SamplingParams(mirostat=version, mirostat_tau=tau, temperature=temperature, logit_bias=bias)
    plain = draw(params(vocab_size))
    return replace(
        plain,
        temperature=temperature,
        logit_bias=bias,
        min_p=draw(st.sampled_from([0.0, 0.0, 0.01, 0.2, 1.0])),
        typical_p=draw(st.sampled_from([1.0, 1.0, 0.5])),
        top_n_sigma=draw(st.sampled_from([-1.0, -1.0, 0.5, 2.0])),
        xtc_probability=draw(st.sampled_from([0.0, 0.5])),
        dynatemp_range=draw(st.sampled_from([0.0, 0.0, 0.5])),
        dry_multiplier=draw(st.sampled_from([0.0, 0.8])),
        dry_allowed_length=draw(st.sampled_from([0, 1])),
        samplers=draw(st.one_of(st.none(), st.lists(st.sampled_from(ORDER), max_size=9, unique=True))),
        bad_words=draw(st.lists(st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=2), max_size=2)),
    )


@st.composite
def cases(draw: st.DrawFn, *, plain: bool = False) -> tuple[list[F32], SamplingParams, int]:
    vocab_size = draw(st.integers(2, 24))
    row_list = [make_row(seed, vocab_size) for seed in draw(st.lists(st.integers(0, 2**32), min_size=1, max_size=6))]
    sampling = params(vocab_size) if plain else st.one_of(params(vocab_size), chains(vocab_size))
    return row_list, draw(sampling), draw(st.integers(0, 2**64 - 1))


def peaked(vocab_size: int = 1000) -> F32:
    """Return logits that fall off so fast that the first eight tokens weigh 0.98 together."""
    return (-0.5 * np.arange(vocab_size)).astype(np.float32)
