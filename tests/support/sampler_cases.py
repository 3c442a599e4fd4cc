"""Random rows and parameters for every sampler, and the check of one row against the oracle."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rnn_engine.sampling.chain import ORDER
from rnn_engine.sampling.params import Ai00Mirostat, Ai00Nucleus, Ai00Typical, Sampler, SamplingParams
from rnn_engine.sampling.ranking import LogitRow, Ranking, SequenceContext, rank_all
from rnn_engine.sampling.samplers import make_adjustments, make_sampler
from rnn_engine.sampling.sequence_sampler import SequenceSampler
from rnn_engine.types import F32
from tests.support.sampling_oracle import Oracle

TOLERANCE = 1e-6  # of a cumulated chance
NUDGES = (0.0, 1e-9, -1e-9)
FIRST_TEXT = 32  # token 0 stands for a space, the ones after it for the characters that follow


def token_text(token: int) -> str:
    return chr(FIRST_TEXT + token)


def token_bytes(token: int) -> bytes:
    return token_text(token).encode()


def _penalties(chance: random.Random) -> dict[str, Any]:
    return {
        "presence_penalty": chance.choice([0.0, 0.4, -0.5]),
        "frequency_penalty": chance.choice([0.0, 0.3]),
        "penalty_decay": chance.choice([1.0, 0.9]),
        "repeat_penalty": chance.choice([1.0, 1.1, 1.5, 0.8]),
        "repeat_last_n": chance.choice([-1, 0, 3, 64]),
    }


def _dry(chance: random.Random) -> dict[str, Any]:
    return {
        "dry_multiplier": chance.choice([0.5, 2.0]),
        "dry_base": chance.choice([1.0, 1.75, 3.0]),
        "dry_allowed_length": chance.choice([0, 1, 2, 3]),
        "dry_penalty_last_n": chance.choice([-1, 4, 64]),
        "dry_sequence_breakers": tuple(chance.sample(["!", '"', "#", "*"], 2)),
    }


def _chain(chance: random.Random) -> dict[str, Any]:
    """Return parameters with several random steps in random order."""
    values: dict[str, Any] = {"top_p": 1.0, "top_k": 0}
    for kind in chance.sample(sorted(SINGLE), 3):
        values |= SINGLE[kind](chance)
    values.pop("mirostat", None)
    if chance.random() < 0.7:
        values["samplers"] = tuple(chance.sample(ORDER, chance.randint(0, len(ORDER))))
    return values


SINGLE: Mapping[str, Callable[[random.Random], dict[str, Any]]] = {
    "top_k": lambda chance: {"top_k": chance.choice([1, 3, 40])},
    "top_p": lambda chance: {"top_p": chance.choice([0.0, 0.3, 0.9, 0.99])},
    "min_p": lambda chance: {"min_p": chance.choice([0.01, 0.05, 0.5, 1.0])},
    "typical_p": lambda chance: {"typical_p": chance.choice([0.0, 0.3, 0.95])},
    "top_n_sigma": lambda chance: {"top_n_sigma": chance.choice([0.5, 1.0, 3.0])},
    "xtc": lambda chance: {
        "xtc_probability": chance.choice([0.5, 1.0]),
        "xtc_threshold": chance.choice([0.0, 0.1, 0.5]),
    },
    "temperature": lambda chance: {"temperature": chance.choice([0.0, 0.3, 0.8, 1.5])},
    "dynatemp": lambda chance: {
        "temperature": chance.choice([0.2, 1.0]),
        "dynatemp_range": chance.choice([0.2, 0.9, 1.5]),
        "dynatemp_exponent": chance.choice([0.5, 1.0, 2.0]),
    },
    "penalties": _penalties,
    "dry": _dry,
}


def _alone(kind: str, chance: random.Random) -> dict[str, Any]:
    return {"top_p": 1.0, "top_k": 0, **SINGLE[kind](chance)}


_AI00_PENALTIES = {"presence_penalty": 0.2, "frequency_penalty": 0.1, "penalty_decay": 0.8}
KINDS: Mapping[str, Callable[[random.Random], dict[str, Any]]] = {
    "nucleus": lambda chance: {
        "top_p": chance.choice([0.0, 0.5, 0.9, 1.0]),
        "top_k": chance.choice([-1, 0, 4, 128]),
        "temperature": chance.choice([0.0, 0.5, 1.0, 1.4]),
        **_penalties(chance),
    },
    **{f"{kind} alone": partial(_alone, kind) for kind in SINGLE},
    "mirostat 1": lambda chance: {
        "mirostat": 1,
        "mirostat_tau": chance.choice([1.0, 3.0]),
        "temperature": chance.choice([0.8, 1.0]),
    },
    "mirostat 2": lambda chance: {
        "mirostat": 2,
        "mirostat_tau": chance.choice([0.5, 2.0, 5.0]),
        "mirostat_eta": chance.choice([0.1, 0.7]),
        "temperature": chance.choice([0.7, 1.0]),
    },
    "ai00's nucleus": lambda chance: {"sampler": Ai00Nucleus(chance.choice([0.3, 0.9]), chance.choice([3, 128]), 0.9)},
    "ai00's typical": lambda chance: {
        "sampler": Ai00Typical(chance.choice([0.2, 0.9]), chance.choice([2, 128]), 1.2, **_AI00_PENALTIES)
    },
    "ai00's mirostat": lambda chance: {"sampler": Ai00Mirostat(chance.choice([1.0, 3.0]), chance.choice([0.1, 0.6]))},
    "chain": _chain,
}
"""Kind of sampler -> random parameters of it."""


def random_row(chance: random.Random, vocab_size: int) -> F32:
    """Return logits like a model's: two are equal only by accident."""
    generator = np.random.default_rng(chance.getrandbits(32))
    return generator.gumbel(0.0, chance.choice([0.5, 1.5, 4.0]), vocab_size).astype(np.float32)


@dataclass
class Compared:
    """A comparison of the sampler and the oracle over one sequence of rows."""

    params: SamplingParams
    context: SequenceContext
    chance: random.Random
    selects: bool = False  # rank only the tokens that the sampler selects, not whole rows
    checked: int = 0  # rows

    def run(self, rows: Sequence[F32]) -> None:
        """Compare the distributions of all rows. Raises AssertionError if they differ by more than `TOLERANCE`."""
        sampler, adjustments = make_sampler(self.params, self.context), make_adjustments(self.params, self.context)
        context = self.context
        oracle = Oracle(self.params, context.vocab_size, token_text, context.earlier, context.prompt)
        for row in rows:
            coin = self.chance.random() < self.params.xtc_probability
            adjustments.begin_draw()
            ranking = rank_all(row, None, adjustments, sampler.selection if self.selects else None)
            uniform = 0.0 if coin else 0.999999

            draw = partial(_draw, sampler, ranking, uniform)
            for oracle.nudge in NUDGES:
                chances = oracle.distribution(row.tolist(), coin=coin)
                if _agrees(draw, chances):
                    break
            else:
                raise AssertionError(f"another distribution than {chances[:6]}: {self.params}")
            token, probability = self.chance.choices(chances, [chance for _, chance in chances])[0]
            sampler.drawn(ranking, ranking.ids.tolist().index(token))
            adjustments.generated(token)
            oracle.drawn(token, probability)
            self.checked += 1


def _draw(sampler: Sampler, ranking: Ranking, coin: float, place: float) -> int:
    """Return the token that the sampler draws with the random number `place` of [0, 1); `coin` decides XTC."""
    index = sampler.draw(ranking, (place, coin)[: sampler.num_uniforms])
    assert index is not None
    return int(ranking.ids[index])


def _agrees(draw: Callable[[float], int], chances: Sequence[tuple[int, float]]) -> bool:
    """Return True if the draws at both ends of every token's part of [0, 1) give that token."""
    end = 0.0
    for token, chance in chances:
        start, end = end, end + chance
        if chance > 2.0 * TOLERANCE and not draw(start + TOLERANCE) == token == draw(end - TOLERANCE):
            return False
    return True


def compare(kind: str, seed: int, num_rows: int, vocab_size: int = 24) -> Compared:
    """Draw parameters and rows of one kind by `seed`, and compare the sampler with the oracle on them."""
    chance = random.Random(f"{kind} {seed}")
    params = SamplingParams(**KINDS[kind](chance))
    if chance.random() < 0.3:
        params_bias = {chance.randrange(vocab_size): chance.choice([-3.0, 2.0]) for _ in range(3)}
        params = SamplingParams(**{**_fields(params), "logit_bias": params_bias})
    words = [chance.randrange(6) for _ in range(chance.choice([0, 5, 30]))]
    context = SequenceContext(
        earlier=[chance.randrange(8) for _ in range(chance.choice([0, 4]))],
        prompt=words,
        vocab_size=vocab_size,
        token_bytes=token_bytes,
    )
    compared = Compared(params, context, chance, selects=seed % 2 == 1)
    compared.run([random_row(chance, vocab_size) for _ in range(num_rows)])
    return compared


def _fields(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__}


def chi_square(kind: str, seed: int, num_draws: int, vocab_size: int = 24, min_tokens: int = 3) -> tuple[float, int]:
    """Draw first tokens from one row; return chi-square of their counts and its degrees of freedom.

    Tokens that are expected fewer than 10 times count together. XTC is left out of the parameters, since it makes two
    distributions of one.
    """
    chance = random.Random(f"{kind} {seed}")
    context = SequenceContext(vocab_size=vocab_size, token_bytes=token_bytes)
    expected: dict[int, float] = {}
    while len(expected) < min_tokens:  # until parameters leave some choice
        params = replace(SamplingParams(**KINDS[kind](chance)), xtc_probability=0.0)
        row = random_row(chance, vocab_size)
        expected = dict(Oracle(params, vocab_size, token_text).distribution(row.tolist(), coin=False))
    drawn = Counter(
        SequenceSampler(params, draw, context).draw(LogitRow.of_full(row, 8)).token for draw in range(num_draws)
    )
    assert set(drawn) <= set(expected)
    often = [token for token, probability in expected.items() if probability * num_draws >= 10.0]
    pairs = [(drawn[token], expected[token] * num_draws) for token in often]
    pairs.append((num_draws - sum(count for count, _ in pairs), num_draws - sum(mean for _, mean in pairs)))
    terms = [(count - mean) ** 2 / mean for count, mean in pairs if mean >= 1.0]
    return sum(terms), max(len(terms) - 1, 0)
