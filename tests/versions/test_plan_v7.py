"""The dispatches of RWKV-7, written out for a small model: a change of the plan must change this text."""

from __future__ import annotations

import pytest

from tests.support.gpu import make_gpu_runner
from tests.support.models import random_model, tiny_shape

Sizes = tuple[int, int, int]
"""How many tokens, runs and rows a step has."""

PLANS: dict[tuple[str, Sizes], str] = {
    ("software", (1, 1, 1)): """\
embedding: embed 1 x 1
layer 0 att norm: norm_shift 1 x 1
layer 0 projections: matmul 6 x 1
layer 0 gates: matmul 3 x 1
layer 0 recurrence: wkv7 4 x 1
layer 0 output: matmul 1 x 1
layer 0 ffn norm: norm_shift 1 x 1
layer 0 key: matmul 4 x 1
layer 0 value: matmul 1 x 1
layer 1 att norm: norm_shift 1 x 1
layer 1 projections: matmul 7 x 1
layer 1 gates: matmul 4 x 1
layer 1 recurrence: wkv7 4 x 1
layer 1 output: matmul 1 x 1
layer 1 ffn norm: norm_shift 1 x 1
layer 1 key: matmul 4 x 1
layer 1 value: matmul 1 x 1
norm rows: norm_rows 1 x 1
head: matmul 2 x 1
candidates: candidates 1 x 1
""",
    ("software", (40, 3, 0)): """\
embedding: embed 40 x 1
layer 0 att norm: norm_shift 40 x 1
layer 0 projections: matmul 12 x 5
layer 0 gates: matmul 6 x 5
layer 0 recurrence: wkv7 4 x 3
layer 0 output: matmul 2 x 5
layer 0 ffn norm: norm_shift 40 x 1
layer 0 key: matmul 8 x 5
layer 0 value: matmul 2 x 5
layer 1 att norm: norm_shift 40 x 1
layer 1 projections: matmul 14 x 5
layer 1 gates: matmul 8 x 5
layer 1 recurrence: wkv7 4 x 3
layer 1 output: matmul 2 x 5
layer 1 ffn norm: norm_shift 40 x 1
layer 1 key: matmul 8 x 5
layer 1 value: matmul 2 x 5
""",
    ("discrete", (1, 1, 1)): """\
embedding: embed 1 x 1
layer 0 projections: matmul 48 x 1
layer 0 recurrence: wkv7 4 x 1
layer 0 output: matmul 8 x 1
layer 0 key: matmul 32 x 1
layer 0 value: matmul 8 x 1
layer 1 projections: matmul 56 x 1
layer 1 recurrence: wkv7 4 x 1
layer 1 output: matmul 8 x 1
layer 1 key: matmul 32 x 1
layer 1 value: matmul 8 x 1
norm rows: norm_rows 1 x 1
head: matmul 16 x 1
candidates: candidates 1 x 1
""",
    ("discrete", (5, 2, 3)): """\
embedding: embed 5 x 1
layer 0 att norm: norm_shift 5 x 1
layer 0 projections: matmul 48 x 1
layer 0 gates: matmul 24 x 1
layer 0 recurrence: wkv7 4 x 2
layer 0 output: matmul 8 x 1
layer 0 ffn norm: norm_shift 5 x 1
layer 0 key: matmul 32 x 1
layer 0 value: matmul 8 x 1
layer 1 att norm: norm_shift 5 x 1
layer 1 projections: matmul 56 x 1
layer 1 gates: matmul 32 x 1
layer 1 recurrence: wkv7 4 x 2
layer 1 output: matmul 8 x 1
layer 1 ffn norm: norm_shift 5 x 1
layer 1 key: matmul 32 x 1
layer 1 value: matmul 8 x 1
norm rows: norm_rows 3 x 1
head: matmul 16 x 1
candidates: candidates 3 x 1
""",
    ("discrete", (100, 4, 18)): """\
embedding: embed 100 x 1
layer 0 att norm: norm_shift 100 x 1
layer 0 projections: matmul_tiled 6 x 2
layer 0 gates: matmul_tiled 3 x 2
layer 0 recurrence: wkv7 4 x 4
layer 0 output: matmul_tiled 1 x 2
layer 0 ffn norm: norm_shift 100 x 1
layer 0 key: matmul_tiled 4 x 2
layer 0 value: matmul_tiled 1 x 2
layer 1 att norm: norm_shift 100 x 1
layer 1 projections: matmul_tiled 7 x 2
layer 1 gates: matmul_tiled 4 x 2
layer 1 recurrence: wkv7 4 x 4
layer 1 output: matmul_tiled 1 x 2
layer 1 ffn norm: norm_shift 100 x 1
layer 1 key: matmul_tiled 4 x 2
layer 1 value: matmul_tiled 1 x 2
norm rows: norm_rows 18 x 1
head: matmul_tiled 2 x 1
candidates: candidates 18 x 1
""",
}


@pytest.mark.parametrize(("kind", "sizes"), PLANS)
def test_dispatches_are_those_written_here(kind: str, sizes: Sizes) -> None:
    model = random_model(tiny_shape(layers=2), seed=1)
    runner = make_gpu_runner(model, kind=kind, num_slots=4, max_tokens=128, max_rows=20, num_candidates=8)
    assert f"{runner.plan(*sizes)}\n" == PLANS[kind, sizes]
    runner.close()
