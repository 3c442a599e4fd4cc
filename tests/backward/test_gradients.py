"""Gradients on a device, compared with numpy in f64: awkward sizes, every version, and weights that are rounded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from rnn_engine.backward import Optimizer, Trainer, TrainingDocument, TrainingState
from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.types import F32, ModelShape, State
from rnn_engine.versions.v7.layout import AdapterRanks
from tests.support.models import TensorModel, random_model, tiny_shape
from tests.support.older_models import tiny_v5, tiny_v6
from tests.support.quantised import rounded
from tests.support.reference import relative_error
from tests.support.trainers import make_cpu_trainer, make_gpu_trainer

ODD_RANKS = AdapterRanks(w=5, a=7, v=3, g=9)
SIZES: dict[str, ModelShape] = {
    "v7, 12 layers, 3 heads of 16": tiny_shape(layers=12, width=48, head_size=16, ffn=100, vocab=12, ranks=ODD_RANKS),
    "v7, one layer, one head of 128": tiny_shape(layers=1, width=128, head_size=128, vocab=12),
    "v6, 12 layers, 3 heads of 16": tiny_v6(layers=12, width=48, head_size=16, ffn=100, vocab=12),
    "v6, 5 heads of 24": tiny_v6(layers=2, width=120, head_size=24, ffn=53, vocab=97, mix_rank=5, decay_rank=11),
    "v5.1, 3 heads of 24": tiny_v5("v5.1", layers=2, width=72, head_size=24, vocab=97),
    "v5.0, 2 heads of 40": tiny_v5("v5.0", layers=1, width=80, head_size=40, ffn=53, vocab=12),
}
CALLS = ((1,), (2,), (15,), (16,), (17,), (64,), (200,), (17, 1, 64, 15))  # the numbers of inputs of the documents
MAX_TOKENS, MAX_DOCUMENTS = 200, 4


def make_documents(lengths: Sequence[int], vocab: int) -> list[TrainingDocument]:
    generator = np.random.default_rng(lengths)
    documents = []
    for length in lengths:
        weights = generator.choice(np.array([0, 0.5, 1], np.float32), length + 1)
        weights[0], weights[1], weights[-1] = 0, 1, 1
        documents.append(TrainingDocument(generator.integers(vocab, size=length + 1, dtype=np.int32), weights))
    return documents


def random_start(shape: ModelShape, trained: Sequence[str]) -> TrainingState:
    """Return a state of the magnitude of those after some tokens, and moments of the `trained` fields."""
    generator = np.random.default_rng(52)
    initial = shape.initial_state()
    zeros: dict[str, F32] = {name: np.zeros_like(initial[name]) for name in trained}
    state = {name: generator.normal(0, 0.3, values.shape).astype(np.float32) for name, values in initial.items()}
    return TrainingState(state, zeros, zeros, 0)


def gradients(trainer: Trainer, calls: Sequence[Sequence[int]]) -> list[tuple[float, State]]:
    """Return the loss of each call and its gradient."""
    start, results = random_start(trainer.shape, list(trainer.gradient())), []
    for lengths in calls:
        trainer.write(start)
        loss = trainer.accumulate(make_documents(lengths, trainer.shape.vocab_size), 1.0)
        results.append((loss, trainer.gradient()))
    return results


def check(
    model: TensorModel,
    oracle: TensorModel,
    calls: Sequence[Sequence[int]],
    *,
    weights: str = "f32",
    kind: str = "software",
    trains_shifts: bool = True,
) -> None:
    """Compare losses and gradients of `model` on a device with those of `oracle`, which has the rounded weights."""
    make = partial(
        make_cpu_trainer,
        optimizer=Optimizer(),
        trains_shifts=trains_shifts,
        max_documents=MAX_DOCUMENTS,
        max_tokens=MAX_TOKENS,
    )
    expected = gradients(make(oracle, dtype=np.float64), calls)
    with closing(make_gpu_trainer(model, **make.keywords, max_rows=30, kind=kind, weights=weights)) as trainer:
        found = gradients(trainer, calls)
    for lengths, (loss, gradient), (expected_loss, expected_gradient) in zip(calls, found, expected, strict=True):
        assert loss == pytest.approx(expected_loss, rel=1e-4), lengths
        assert gradient.keys() == expected_gradient.keys()
        for name, values in expected_gradient.items():
            assert relative_error(gradient[name], values) < 1e-4, (lengths, name)


@pytest.mark.parametrize("shape", SIZES.values(), ids=SIZES.keys())
def test_awkward_sizes(shape: ModelShape) -> None:
    model = random_model(shape, seed=51)
    check(model, model, CALLS)


def test_the_kernels_of_hardware() -> None:
    model = random_model(SIZES["v6, 5 heads of 24"], seed=51)
    check(model, model, CALLS, kind="discrete")


@pytest.mark.parametrize(
    ("shape", "weights"),
    [(tiny_shape(), "int4"), (tiny_v6(), "f16"), (tiny_v5(), "int8")],
    ids=["v7-int4", "v6-f16", "v5.2-int8"],
)
def test_rounded_weights(shape: ModelShape, weights: str) -> None:
    """The gradients are those of the weights as the device holds them. All have more bits than f16 has."""
    chance = np.random.default_rng(53)
    exact = random_model(shape, seed=51).tensors
    tensors = {name: (v * chance.uniform(0.99, 1.01, v.shape)).astype(np.float32) for name, v in exact.items()}
    model = TensorModel(shape, tensors)
    check(model, rounded(model, WeightChoice.parse(weights)), [(17, 1, 40)], weights=weights, trains_shifts=False)
