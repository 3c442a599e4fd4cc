"""The embedding on the device: every number format of files, and tables larger than a binding."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import DTypeLike

from rnn_engine.types import F32, TokenRun, run_step
from tests.support.gpu import KINDS, make_gpu_runner
from tests.support.models import TensorModel, random_model, tiny_shape
from tests.support.reference import forward

VOCAB = 5000
TOKENS = [0, 4999, 1, 1560, 1563, 2500, 3124, 3125, 1562, 4687, 4688, 42]  # also at the ends of the table's parts
MODEL = random_model(tiny_shape(layers=1, width=16, vocab=VOCAB), seed=5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_a_table_gives_the_same_whole_and_in_parts(dtype: DTypeLike, kind: str) -> None:
    table = MODEL.tensor("emb.weight").astype(dtype)
    model = TensorModel(MODEL.shape, {**MODEL.tensors, "emb.weight": table})
    row_bytes = 16 * (2 if table.itemsize == 2 else 4)
    found: list[F32] = []
    for limit, num_parts in ((None, 1), (100_000, -(-VOCAB // (100_000 // row_bytes)))):
        runner = make_gpu_runner(
            model, num_slots=1, max_tokens=16, max_rows=4, num_candidates=8, kind=kind, max_binding_bytes=limit
        )
        labels = [dispatch.label for dispatch in runner.plan(len(TOKENS), 1, 1).dispatches]
        assert labels.count("embedding") == num_parts
        found.append(run_step(runner, [TokenRun(0, TOKENS, rows=1)]).full_row(0))
        runner.close()
    assert np.array_equal(found[0], found[1])
    expected = forward(model, TOKENS, dtype=np.float64)[0][-1]
    assert np.abs(found[0] - expected).max() <= 2e-5 * np.abs(expected).max()
