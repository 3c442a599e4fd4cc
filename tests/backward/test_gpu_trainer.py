"""The trainer on a GPU: the contract of all trainers, and the end of the model alone, in pieces of rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from rnn_engine.backward import Optimizer, TrainingDocument
from rnn_engine.backward.context import BackwardContext, BackwardLayer
from rnn_engine.backward.gpu_trainer import parts_of
from rnn_engine.gpu import Plan
from rnn_engine.reference import Weights, embed, project_to_logits
from rnn_engine.reference.backward import project_to_logits_backward
from rnn_engine.types import F32, ModelShape
from tests.support.gpu import KINDS
from tests.support.models import random_model, tiny_shape
from tests.support.older_models import tiny_v5, tiny_v6
from tests.support.reference import relative_error
from tests.support.trainer_contract import MAX_DOCUMENTS, MAX_TOKENS, MakeTrainer, TrainerContract, make_document
from tests.support.trainer_contract import SHAPE as CONTRACT_SHAPE
from tests.support.trainers import make_cpu_trainer, make_gpu_trainer


@pytest.fixture(scope="module", params=KINDS)
def make_trainer(request: pytest.FixtureRequest) -> MakeTrainer:
    return partial(make_gpu_trainer, kind=request.param)


class TestGpuTrainer(TrainerContract):
    pass


SHAPE = tiny_shape(layers=1, width=40, head_size=8, vocab=133)
MODEL = random_model(SHAPE, seed=5)


class Kept:
    """Loads a model's layers as ones that do nothing, and keeps the context."""

    def __call__(self, context: BackwardContext) -> Iterator[BackwardLayer]:
        self.context = context
        yield BackwardLayer((), (), ())


@pytest.mark.parametrize("max_binding_bytes", [None, 64 * 40 * 4])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_their_gradient_in_pieces_of_rows(kind: str, max_binding_bytes: int | None) -> None:
    generator = np.random.default_rng(3)
    weights = generator.choice(np.array([0, 0.5, 2], np.float32), 24)
    weights[0] = 0
    documents = [
        TrainingDocument(generator.integers(SHAPE.vocab_size, size=24, dtype=np.int32), weights) for _ in range(2)
    ]
    kept = Kept()
    trainer = make_gpu_trainer(
        MODEL,
        optimizer=Optimizer(),
        trains_shifts=False,
        max_documents=2,
        max_tokens=50,
        max_rows=5,
        kind=kind,
        load_backward=kept,
        max_binding_bytes=max_binding_bytes,
    )
    with closing(trainer):
        losses = [trainer.loss(documents), trainer.accumulate(documents, 1.0)]
        memory, dx = kept.context.forward.memory, kept.context.dx
        found = np.frombuffer(memory.read(dx, 0, 4 * 46 * SHAPE.width), np.float32).reshape(46, SHAPE.width)
    expected_loss, expected = _loss_at_the_end(documents)
    assert losses == pytest.approx([expected_loss] * 2, rel=1e-5)
    assert relative_error(found, expected) < 1e-5
    assert not found[np.tile(weights[1:], 2) == 0].any()


def _loss_at_the_end(documents: list[TrainingDocument]) -> tuple[float, F32]:
    """Return the loss of documents and its gradient [T, D], in f64, if the layers do nothing."""
    model = Weights(SHAPE, MODEL.tensor, np.float64)
    x = embed(model, np.concatenate([document.tokens[:-1] for document in documents]))
    targets = np.concatenate([document.tokens[1:] for document in documents])
    weights = np.concatenate([document.weights[1:] for document in documents]).astype(np.float64)
    logits = project_to_logits(model, x)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    own = np.arange(len(x)), targets
    loss = -np.log(probabilities[own]) @ weights
    gradient = probabilities
    gradient[own] -= 1
    return float(loss), project_to_logits_backward(gradient * weights[:, np.newaxis], model, x)


@pytest.mark.parametrize(
    "shape",
    [CONTRACT_SHAPE, tiny_v6(layers=2, width=32), *(tiny_v5(v, 2, 32) for v in ("v5.0", "v5.2"))],
    ids=lambda shape: shape.version,
)
def test_the_gradient_is_that_of_numpy_in_every_version(shape: ModelShape) -> None:
    model = random_model(shape, seed=23)
    documents = [make_document(seed, length) for seed, length in enumerate((18, 2, 9))]
    makers: tuple[MakeTrainer, ...] = (partial(make_cpu_trainer, dtype=np.float64), make_gpu_trainer)
    limits = {"max_documents": MAX_DOCUMENTS, "max_tokens": MAX_TOKENS}  # those of the contract, for its kernels
    gradients = []
    for make in makers:
        with closing(make(model, optimizer=Optimizer(), trains_shifts=True, **limits)) as trainer:
            trainer.accumulate(documents[:1], 0.5)
            trainer.accumulate(documents, 1.0)
            gradients.append(trainer.gradient())
    expected, found = gradients
    for name, values in expected.items():
        assert relative_error(found[name], values) < 1e-4  # measured: 2.8e-6 at most


def test_the_last_layer_runs_once_and_the_others_twice() -> None:
    model = random_model(tiny_shape(layers=3), seed=1)
    trainer = make_gpu_trainer(model, optimizer=Optimizer(), trains_shifts=False, max_documents=1, max_tokens=8)
    with closing(trainer):
        labels = [dispatch.label for dispatch in trainer.plan(8, 1, 7).dispatches]
    assert [labels.count(f"layer {layer} recurrence") for layer in range(3)] == [2, 2, 1]


def test_a_plan_is_cut_where_a_part_would_have_too_many_operations() -> None:
    trainer = make_gpu_trainer(
        MODEL, optimizer=Optimizer(), trains_shifts=False, max_documents=1, max_tokens=8, load_backward=Kept()
    )
    with closing(trainer):
        plan = trainer.plan(8, 1, 8)
    operations = [dispatch.operations for dispatch in plan.dispatches]
    assert sum(operations) == 2 * (2 * 8 * 40 * 133)  # the head, there and back
    assert list(parts_of(plan, sum(operations))) == [plan]
    parts = list(parts_of(plan, sum(operations) - 1))
    assert len(parts) == 2
    assert Plan((*parts[0].dispatches, *parts[1].dispatches)) == plan
