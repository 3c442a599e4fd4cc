"""The contract of every `Trainer` on any device, as tests to inherit.

A subclass is named Test.... Its module has a fixture `make_trainer`, of class scope or wider, that returns a
`MakeTrainer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import pytest

from rnn_engine.backward import Optimizer, Trainer, TrainingDocument, TrainingState
from rnn_engine.errors import InvalidRequestError, StepError
from rnn_engine.reference import Array
from rnn_engine.types import FieldKind, Model, State
from tests.support.models import TensorModel, random_model, tiny_shape
from tests.support.reference import forward, relative_error

SHAPE = tiny_shape(layers=2, width=48, head_size=16, ffn=100, vocab=40)
MODEL = random_model(SHAPE, seed=71)
MAX_TOKENS, MAX_DOCUMENTS = 60, 4
FIELDS = {field.name: field.kind for field in SHAPE.state_fields}
MATRICES = [name for name, kind in FIELDS.items() if kind is FieldKind.MATRIX]


class MakeTrainer(Protocol):
    """Returns a trainer of `model`."""

    def __call__(
        self, model: Model, *, optimizer: Optimizer, trains_shifts: bool, max_documents: int, max_tokens: int
    ) -> Trainer: ...


def make_document(seed: int, length: int) -> TrainingDocument:
    """Return `length` random tokens. A part of the predictions counts half, and another part not at all."""
    generator = np.random.default_rng(seed)
    weights = generator.choice(np.array([0, 0.5, 1], np.float32), length)
    weights[0], weights[-1] = 0, 1
    return TrainingDocument(generator.integers(SHAPE.vocab_size, size=length, dtype=np.int32), weights)


DOCUMENTS = [make_document(seed, length) for seed, length in enumerate((18, 2, 9))]


def random_training_state(seed: int, fields: Sequence[str]) -> TrainingState:
    """Return a random state, and moments of `fields`, after 5 updates."""
    generator = np.random.default_rng(seed)

    def draw(names: Sequence[str]) -> dict[str, Array]:
        initial = SHAPE.initial_state()
        return {name: generator.normal(0, 0.3, initial[name].shape).astype(np.float32) for name in names}

    second = {name: np.square(values) for name, values in draw(fields).items()}
    return TrainingState(draw(list(FIELDS)), draw(fields), second, 5)


def assert_equal(found: State, expected: State) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == np.float32
        assert np.array_equal(found[name], values), name


def expected_loss(document: TrainingDocument, state: Mapping[str, Array]) -> float:
    """Return the loss of a document from `state`, computed from all logits in f64."""
    logits, _ = forward(MODEL, document.tokens[:-1].tolist(), state, np.float64)
    largest = logits.max(axis=-1)
    logsumexp = largest + np.log(np.exp(logits - largest[:, np.newaxis]).sum(axis=-1))
    own = logits[np.arange(document.num_inputs), document.tokens[1:]]
    return float((logsumexp - own) @ document.weights[1:])


class TrainerContract:
    """All tests of the contract, with a model of one version."""

    @pytest.fixture
    def trainer(self, make_trainer: MakeTrainer) -> Iterator[Trainer]:
        """Yield a trainer of all fields, in a state that is not the empty one."""
        trainer = make_trainer(
            MODEL, optimizer=Optimizer(), trains_shifts=True, max_documents=MAX_DOCUMENTS, max_tokens=MAX_TOKENS
        )
        trainer.write(random_training_state(3, list(FIELDS)))
        yield trainer
        trainer.close()

    @pytest.fixture
    def matrices_trainer(self, make_trainer: MakeTrainer) -> Iterator[Trainer]:
        """Yield a trainer of the matrices alone, from the empty state."""
        trainer = make_trainer(
            MODEL, optimizer=Optimizer(), trains_shifts=False, max_documents=MAX_DOCUMENTS, max_tokens=MAX_TOKENS
        )
        yield trainer
        trainer.close()

    # Losses and gradients

    def test_it_has_the_sizes_asked_for(self, trainer: Trainer) -> None:
        assert trainer.shape == SHAPE
        assert (trainer.max_documents, trainer.max_tokens) == (MAX_DOCUMENTS, MAX_TOKENS)

    def test_the_loss_is_that_of_all_logits(self, trainer: Trainer) -> None:
        state = trainer.read().state
        for documents in (DOCUMENTS, DOCUMENTS[1:2]):
            expected = sum(expected_loss(document, state) for document in documents)
            assert trainer.loss(documents) == pytest.approx(expected, rel=1e-5)
            assert trainer.accumulate(documents, 0.5) == pytest.approx(expected, rel=1e-5)

    def test_the_gradient_is_the_slope_of_the_loss(self, trainer: Trainer) -> None:
        trainer.accumulate(DOCUMENTS, 0.25)
        trainer.accumulate(DOCUMENTS[:1], -2.0)
        gradient, state = trainer.gradient(), trainer.read().state
        assert set(gradient) == set(FIELDS)
        generator = np.random.default_rng(4)
        for name, values in gradient.items():
            direction = generator.normal(size=values.shape)
            slope = 0.0
            for factors in (0.25, 0.25, 0.25), (-2.0,):
                for document, factor in zip(DOCUMENTS, factors, strict=False):
                    losses = [
                        expected_loss(document, {**state, name: state[name] + step * direction})
                        for step in (1e-5, -1e-5)
                    ]
                    slope += factor * (losses[0] - losses[1]) / 2e-5
            assert abs(np.sum(values * direction) - slope) < 1e-4 * np.linalg.norm(values), name

    def test_documents_side_by_side_are_as_alone(self, trainer: Trainer) -> None:
        trainer.accumulate(DOCUMENTS, 1.0)
        together = trainer.gradient()
        trainer.update(0.0)
        trainer.write(random_training_state(3, list(FIELDS)))
        for document in DOCUMENTS:
            trainer.accumulate([document], 1.0)
        for name, values in trainer.gradient().items():
            assert relative_error(values, together[name]) < 1e-5

    def test_predictions_of_weight_0_do_not_count(self, trainer: Trainer) -> None:
        silent = TrainingDocument(DOCUMENTS[0].tokens, np.zeros_like(DOCUMENTS[0].weights))
        assert trainer.accumulate([silent], 1.0) == 0.0
        assert all(not values.any() for values in trainer.gradient().values())
        alone = trainer.loss(DOCUMENTS[1:])
        assert trainer.loss([silent, *DOCUMENTS[1:]]) == pytest.approx(alone, rel=1e-6)

    def test_the_largest_call_fits(self, trainer: Trainer) -> None:
        lengths = [MAX_TOKENS - 3 * (MAX_DOCUMENTS - 1) + 1, *[4] * (MAX_DOCUMENTS - 1)]
        documents = [make_document(seed, length) for seed, length in enumerate(lengths)]
        assert sum(document.num_inputs for document in documents) == MAX_TOKENS
        expected = sum(expected_loss(document, trainer.read().state) for document in documents)
        assert trainer.accumulate(documents, 1.0) == pytest.approx(expected, rel=1e-5)

    # Updates

    def test_updates_are_those_of_adam(self, trainer: Trainer) -> None:
        """Compare several updates with the algorithm as published, with gradients scaled down to norm 1 if greater."""
        start = trainer.read()
        state, first, second = (
            {name: values.astype(np.float64) for name, values in part.items()}
            for part in (start.state, start.first, start.second)
        )
        for update, scale in enumerate((1e-3, 10.0, 0.02), start=start.num_updates + 1):
            trainer.accumulate(DOCUMENTS, scale)
            gradient = {name: values.astype(np.float64) for name, values in trainer.gradient().items()}
            norm = np.sqrt(sum(np.sum(values**2) for values in gradient.values()))
            assert trainer.update(0.03) == pytest.approx(norm, rel=1e-5)
            for name, values in gradient.items():
                g = values / max(1.0, norm)
                first[name] = 0.9 * first[name] + 0.1 * g
                second[name] = 0.99 * second[name] + 0.01 * g**2
                corrected = first[name] / (1 - 0.9**update), second[name] / (1 - 0.99**update)
                state[name] = state[name] - 0.03 * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
        end = trainer.read()
        assert end.num_updates == start.num_updates + 3
        for found, expected in ((end.state, state), (end.first, first), (end.second, second)):
            for name, values in expected.items():
                assert relative_error(found[name], values) < 1e-5

    def test_an_update_clears_the_gradient(self, trainer: Trainer) -> None:
        trainer.accumulate(DOCUMENTS, 1.0)
        assert trainer.update(0.1) > 0
        assert all(not values.any() for values in trainer.gradient().values())

    def test_a_gradient_that_is_not_finite_changes_nothing(self, trainer: Trainer) -> None:
        trainer.accumulate(DOCUMENTS, 1.0)
        trainer.accumulate(DOCUMENTS, 3e38)
        trainer.accumulate(DOCUMENTS, 3e38)
        before = trainer.read()
        assert not np.isfinite(trainer.update(0.1))
        after = trainer.read()
        assert_equal(after.state, before.state)
        assert_equal(after.first, before.first)
        assert after.num_updates == before.num_updates
        assert all(not values.any() for values in trainer.gradient().values())

    def test_it_learns_a_document_by_heart(self, matrices_trainer: Trainer) -> None:
        document = replace(DOCUMENTS[2], weights=np.array([0] + [1] * 8, np.float32))
        before = matrices_trainer.loss([document])
        for _ in range(60):
            matrices_trainer.accumulate([document], 1 / 8)
            matrices_trainer.update(0.3)
        assert matrices_trainer.loss([document]) < before / 20

    def test_without_shifts_only_matrices_change(self, matrices_trainer: Trainer) -> None:
        matrices_trainer.accumulate(DOCUMENTS, 1.0)
        assert list(matrices_trainer.gradient()) == MATRICES
        matrices_trainer.update(0.1)
        initial, after = SHAPE.initial_state(), matrices_trainer.read()
        assert set(after.first) == set(after.second) == set(MATRICES)
        assert after.state.keys() == initial.keys()
        for name, values in after.state.items():
            assert np.array_equal(values, initial[name]) != (name in MATRICES)

    # The same again

    def test_the_same_calls_give_the_same_bits(self, make_trainer: MakeTrainer) -> None:
        def train() -> TrainingState:
            trainer = make_trainer(
                MODEL, optimizer=Optimizer(), trains_shifts=True, max_documents=MAX_DOCUMENTS, max_tokens=MAX_TOKENS
            )
            for _ in range(2):
                trainer.accumulate(DOCUMENTS, 0.1)
                trainer.update(0.1)
            state = trainer.read()
            trainer.close()
            return state

        once, again = train(), train()
        for part in ("state", "first", "second"):
            assert_equal(getattr(once, part), getattr(again, part))

    def test_what_was_read_goes_on_when_written(self, trainer: Trainer) -> None:
        trainer.accumulate(DOCUMENTS, 0.1)
        trainer.update(0.1)
        kept = trainer.read()
        ends = []
        for _ in range(2):
            trainer.accumulate(DOCUMENTS, 1.0)  # forgotten when the state is written
            trainer.write(kept)
            trainer.accumulate(DOCUMENTS[1:], 0.1)
            trainer.update(0.1)
            ends.append(trainer.read())
        assert ends[0].num_updates == kept.num_updates + 1
        for part in ("state", "first", "second"):
            assert_equal(getattr(ends[0], part), getattr(ends[1], part))

    def test_what_was_read_is_a_copy(self, trainer: Trainer) -> None:
        before = trainer.read()
        kept = {name: values.copy() for name, values in before.state.items()}
        trainer.accumulate(DOCUMENTS, 1.0)
        gradient = trainer.gradient()
        kept_gradient = {name: values.copy() for name, values in gradient.items()}
        trainer.update(0.1)
        assert_equal(before.state, kept)
        assert_equal(gradient, kept_gradient)

    # Arguments that are not allowed

    @pytest.mark.parametrize(
        ("documents", "message"),
        [
            ([], "documents: .* at least one document"),
            ([make_document(0, 3)] * 5, "documents: 5 .* at most 4"),
            ([make_document(0, 62)], "tokens: 61 .* at most 60"),
        ],
    )
    def test_documents_that_do_not_fit_are_refused(
        self, trainer: Trainer, documents: list[TrainingDocument], message: str
    ) -> None:
        with pytest.raises(InvalidRequestError, match=message):
            trainer.loss(documents)
        with pytest.raises(InvalidRequestError, match=message):
            trainer.accumulate(documents, 1.0)

    def test_rates_that_mean_nothing_are_refused(self, trainer: Trainer) -> None:
        for rate in (-0.1, float("inf")):
            with pytest.raises(InvalidRequestError, match="rate"):
                trainer.update(rate)

    @pytest.mark.parametrize("name", ["beta1", "beta2", "epsilon", "max_norm"])
    def test_optimizer_settings_out_of_range_are_refused(self, make_trainer: MakeTrainer, name: str) -> None:
        optimizer = replace(Optimizer(), **{name: -1.0})
        with pytest.raises(InvalidRequestError, match=f"optimizer {name}: -1"):
            make_trainer(MODEL, optimizer=optimizer, trains_shifts=False, max_documents=1, max_tokens=8)

    @pytest.mark.parametrize("change", ["field", "shape", "type", "nan", "moments", "negative", "count"])
    def test_a_training_state_that_does_not_fit_is_refused(self, trainer: Trainer, change: str) -> None:
        state = random_training_state(9, list(FIELDS))
        name = MATRICES[0]
        values = state.state[name]
        changes: dict[str, Callable[[], TrainingState]] = {
            "field": lambda: replace(state, state={name: values}),
            "shape": lambda: replace(state, state={**state.state, name: values[:1]}),
            "type": lambda: replace(state, state={**state.state, name: values.astype(np.float64)}),
            "nan": lambda: replace(state, state={**state.state, name: np.full_like(values, np.nan)}),
            "moments": lambda: replace(state, first={name: values}),
            "negative": lambda: replace(state, second={**state.second, name: -state.second[name]}),
            "count": lambda: replace(state, num_updates=-1),
        }
        before = trainer.read()
        with pytest.raises(InvalidRequestError):
            trainer.write(changes[change]())
        assert_equal(trainer.read().state, before.state)

    def test_a_closed_trainer_takes_no_documents(self, trainer: Trainer) -> None:
        trainer.close()
        trainer.close()
        with pytest.raises(StepError, match="closed"):
            trainer.loss(DOCUMENTS)

    def test_a_model_with_numbers_that_are_not_finite_has_no_finite_loss(self, make_trainer: MakeTrainer) -> None:
        head = MODEL.tensor("head.weight").copy()
        head[3, 0] = np.inf
        model = TensorModel(SHAPE, {**MODEL.tensors, "head.weight": head})
        trainer = make_trainer(
            model, optimizer=Optimizer(), trains_shifts=False, max_documents=MAX_DOCUMENTS, max_tokens=MAX_TOKENS
        )
        assert not np.isfinite(trainer.accumulate(DOCUMENTS[:1], 1.0))
        assert not np.isfinite(trainer.update(0.1))
        trainer.close()
