"""What RWKV-7 dispatches, written out for a small model: a change of the plan has to change this text."""

from __future__ import annotations

import pytest

from tests.support.gpu import make_gpu_runner
from tests.support.models import random_model, tiny_shape

Sizes = tuple[int, int, int]
"""How many tokens, runs and rows a step has."""

PLANS: dict[tuple[str, Sizes], str] = {
    ("software", (1, 1, 1)): """\
layer 0 att norm: norm_shift 1 x 1
layer 0 projections: product 6 x 1
layer 0 gates: product 3 x 1
layer 0 recurrence: wkv7 4 x 1
layer 0 output: product 1 x 1
layer 0 ffn norm: norm_shift 1 x 1
layer 0 key: product 4 x 1
layer 0 value: product 1 x 1
layer 1 att norm: norm_shift 1 x 1
layer 1 projections: product 7 x 1
layer 1 gates: product 4 x 1
layer 1 recurrence: wkv7 4 x 1
layer 1 output: product 1 x 1
layer 1 ffn norm: norm_shift 1 x 1
layer 1 key: product 4 x 1
layer 1 value: product 1 x 1
norm rows: norm_rows 1 x 1
head: product 2 x 1
candidates: candidates 1 x 1
""",
    ("software", (40, 3, 0)): """\
layer 0 att norm: norm_shift 40 x 1
layer 0 projections: product 12 x 5
layer 0 gates: product 6 x 5
layer 0 recurrence: wkv7 4 x 3
layer 0 output: product 2 x 5
layer 0 ffn norm: norm_shift 40 x 1
layer 0 key: product 8 x 5
layer 0 value: product 2 x 5
layer 1 att norm: norm_shift 40 x 1
layer 1 projections: product 14 x 5
layer 1 gates: product 8 x 5
layer 1 recurrence: wkv7 4 x 3
layer 1 output: product 2 x 5
layer 1 ffn norm: norm_shift 40 x 1
layer 1 key: product 8 x 5
layer 1 value: product 2 x 5
""",
    ("discrete", (5, 2, 3)): """\
layer 0 att norm: norm_shift 5 x 1
layer 0 projections: product 48 x 1
layer 0 gates: product 24 x 1
layer 0 recurrence: wkv7 4 x 2
layer 0 output: product 8 x 1
layer 0 ffn norm: norm_shift 5 x 1
layer 0 key: product 32 x 1
layer 0 value: product 8 x 1
layer 1 att norm: norm_shift 5 x 1
layer 1 projections: product 56 x 1
layer 1 gates: product 32 x 1
layer 1 recurrence: wkv7 4 x 2
layer 1 output: product 8 x 1
layer 1 ffn norm: norm_shift 5 x 1
layer 1 key: product 32 x 1
layer 1 value: product 8 x 1
norm rows: norm_rows 3 x 1
head: product 16 x 1
candidates: candidates 3 x 1
""",
    ("discrete", (100, 4, 18)): """\
layer 0 att norm: norm_shift 100 x 1
layer 0 projections: product_tiled 6 x 2
layer 0 gates: product_tiled 3 x 2
layer 0 recurrence: wkv7 4 x 4
layer 0 output: product_tiled 1 x 2
layer 0 ffn norm: norm_shift 100 x 1
layer 0 key: product_tiled 4 x 2
layer 0 value: product_tiled 1 x 2
layer 1 att norm: norm_shift 100 x 1
layer 1 projections: product_tiled 7 x 2
layer 1 gates: product_tiled 4 x 2
layer 1 recurrence: wkv7 4 x 4
layer 1 output: product_tiled 1 x 2
layer 1 ffn norm: norm_shift 100 x 1
layer 1 key: product_tiled 4 x 2
layer 1 value: product_tiled 1 x 2
norm rows: norm_rows 18 x 1
head: product_tiled 2 x 1
candidates: candidates 18 x 1
""",
}


@pytest.mark.parametrize(("kind", "sizes"), PLANS)
def test_dispatches_are_those_written_here(kind: str, sizes: Sizes) -> None:
    model = random_model(tiny_shape(layers=2), seed=1)
    runner = make_gpu_runner(model, kind=kind, num_slots=4, max_tokens=128, max_rows=20, num_candidates=8)
    assert f"{runner.plan(*sizes)}\n" == PLANS[kind, sizes]
    runner.close()
