"""Every version in numpy, compared with the golden files."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import DTypeLike

from rnn_engine.loading.runner import open_model
from rnn_engine.versions.table import VERSIONS
from tests.support.golden import FOLDER, ILL_CONDITIONED, NAMES, load_golden
from tests.support.reference import forward, relative_error
from tools.golden.cases import CASES

DEEP = [case.name for case in CASES if case.shape.num_layers == 13]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_golden_numbers(name: str, dtype: DTypeLike) -> None:
    golden = load_golden(name)
    with open_model(golden.model_path) as model:
        logits, state = forward(model, golden.tokens.tolist(), dtype=dtype)
    assert logits.dtype == dtype
    bound = 4e-5 if name == ILL_CONDITIONED else 2e-5
    assert relative_error(logits, golden.logits) < bound  # measured: 1.9e-5 and 6e-6 at most, in f32
    for field, values in golden.state.items():
        assert relative_error(state[field], values) < 2e-5  # measured: 1.4e-5 at most, in f32


def test_golden_files_are_those_of_the_tool() -> None:
    assert set(NAMES) == {case.name for case in CASES}
    others = {"v7-embedding", "v7-reranker", "v6-qwen2", "v7-qwen2"}  # in test_retrieval.py and test_qwen2.py
    assert {case.shape.version for case in CASES} == {version.name for version in VERSIONS.rows} - others
    for case in CASES:
        assert load_golden(case.name).logits.shape == (case.num_tokens, case.shape.vocab_size)


@pytest.mark.parametrize("name", DEEP)
def test_thirteen_layers_agree_with_an_oracle_that_rescales_every_six(name: str) -> None:
    golden = load_golden(name)
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as arrays:
        rescaled = arrays["rescaled_logits"]
    with open_model(golden.model_path) as model:
        logits, _ = forward(model, golden.tokens.tolist())
    assert 0 < relative_error(rescaled, golden.logits) < 1e-4  # layer norm's epsilon weighs more if x is halved
    assert relative_error(logits, rescaled) < 1e-4
