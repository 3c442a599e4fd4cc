"""`python -m tools.fuzz.samplers`: compare every sampler with an independent implementation of its formula.

A row agrees if each token's part of [0, 1) begins and ends within 1e-6 of the formula's bounds. Tokens are also drawn
from one row of each kind, and their counts compared with the formula's by a chi-square test.
"""

from __future__ import annotations

import time
from functools import partial
from multiprocessing import Pool

import click

from tests.support.sampler_cases import KINDS, chi_square, compare

_ROWS = 20  # of one sequence


@click.command()
@click.option("--rows", default=100_000, show_default=True, help="How many rows to compare, of all kinds together.")
@click.option("--draws", default=20_000, show_default=True, help="Tokens that each chi-square test counts.")
@click.option("--seed", default=0, show_default=True)
@click.option("--processes", default=1, show_default=True)
def main(rows: int, draws: int, seed: int, processes: int) -> None:
    """Compare the samplers with their formulas; raise AssertionError at the first difference."""
    began = time.monotonic()
    seeds = range(seed, seed + -(-rows // (len(KINDS) * _ROWS)))
    total = 0
    with Pool(processes) as workers:
        for kind in KINDS:
            checked = sum(workers.map(partial(_compare, kind), seeds, chunksize=16))
            total += checked
            value, freedom = chi_square(kind, seed, draws)
            click.echo(f"{kind:18} {checked:6} rows agree; {draws} draws: chi-square {value:.1f} at {freedom}")
    click.echo(f"{total} rows in {time.monotonic() - began:.0f} s: every one agrees within 1e-6")


def _compare(kind: str, seed: int) -> int:
    return compare(kind, seed, _ROWS).checked


if __name__ == "__main__":
    main()
