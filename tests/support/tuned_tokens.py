"""The check that a model draws the same tokens with other kernels, except those that rounding decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from rnn_engine.forward import GpuRunner
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.tuning import MatMulClass
from rnn_engine.forward.variants import KernelLimits, MatMulVariant, MatMulWork, variants
from rnn_engine.sampling.sequence_sampler import uniforms_from
from rnn_engine.types import F32, Model, TokenRun, run_step
from tests.support.tuned import load_with_matmuls

ROUNDING: Final = 1e-5
"""By how much another order of the same sums may change a logit, in parts of the row's greatest."""

Choices: TypeAlias = Mapping[tuple[MatMulClass, int], MatMulVariant]
Works: TypeAlias = Mapping[tuple[MatMulClass, int], MatMulWork]


def load_chosen(model: Model, choices: Choices, weights: str = "f16") -> GpuRunner:
    """Return a runner of `model` with the matmul kernels of `choices`, and with the fixed choice for other matmuls."""
    runner, matmuls = load_with_matmuls(model, weights=weights)
    matmuls.tuning = replace(matmuls.tuning, found=choices)
    return runner


def works_of(matmuls: MatMulKernels, counts: Sequence[int]) -> Works:
    """Return the work of each class of a model's matmuls, for each of `counts`, the numbers of tokens."""
    parts = [part for matmul in matmuls.bound for part, _ in matmul.parts]
    return {(part.kind, count): part.work(count) for part in parts for count in counts}


def possible(work: MatMulWork, limits: KernelLimits) -> list[MatMulVariant]:
    """Return every variant that a search on a software device may choose for `work`."""
    return list(variants(limits, work, software=True))


@dataclass(frozen=True, slots=True)
class Draws:
    """A sequence to generate, greedily if the temperature is 0."""

    prompt: Sequence[int]
    seed: int
    temperature: float
    num_tokens: int


def count_same(usual: GpuRunner, other: GpuRunner, draws: Draws, part: float = ROUNDING) -> int:
    """Generate with both runners, and return the number of equal tokens before one that rounding decides.

    Rounding may change a logit by `part` of the row's greatest. Raises AssertionError if a logit differs by more, or a
    token that rounding does not decide.
    """
    numbers = uniforms_from(draws.seed, 0, draws.num_tokens, 1)
    tokens = list(draws.prompt)
    for runner in (usual, other):
        runner.write_state(0, None)
    for done, number in enumerate(numbers):
        rows = [run_step(runner, [TokenRun(0, tokens, rows=1)]).full_row(0).copy() for runner in (usual, other)]
        rounding = part * float(np.abs(rows[0]).max())
        assert np.abs(rows[0] - rows[1]).max() <= rounding
        drawn = [draw(row, draws.temperature, number) for row in rows]
        if drawn[0] != drawn[1]:
            assert rounding_decides(rows[0], drawn[1], draws.temperature, number, rounding)
            return done
        tokens = drawn[:1]
    return draws.num_tokens


def draw(row: F32, temperature: float, number: float) -> int:
    """Return the token whose part of [0, 1) has the random number in it. The likeliest token's part is first."""
    order = np.argsort(-row, kind="stable")
    if temperature == 0:
        return int(order[0])
    sums = _sums(row[order], temperature)
    return int(order[np.searchsorted(sums, number * sums[-1], side="right")])


def rounding_decides(row: F32, token: int, temperature: float, number: float, rounding: float) -> bool:
    """Return True if a change of every logit by at most `rounding` can make `token` the one drawn from `row`."""
    order = np.argsort(-row, kind="stable")
    place = int(np.flatnonzero(order == token)[0])
    usual = draw(row, temperature, number)
    if abs(float(row[usual]) - float(row[token])) <= 2 * rounding:
        return True
    if temperature == 0:
        return False
    sums = _sums(row[order], temperature) / _sums(row[order], temperature)[-1]
    moved = np.expm1(4 * rounding / temperature) / 4  # of a cumulated part p: p (1 - p) (exp(4 r / T) - 1) at most
    begin = sums[place - 1] if place else 0.0
    return bool(begin - moved <= number <= sums[place] + moved)


def _sums(ranked: F32, temperature: float) -> np.ndarray:
    scaled = (ranked.astype(np.float64) - float(ranked[0])) / temperature
    sums: np.ndarray = np.exp(scaled).cumsum()
    return sums
