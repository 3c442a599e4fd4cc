"""Low-rank pairs beside matrices: their gradients in numpy by finite differences, and those on a device as in numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rnn_engine.backward import Optimizer, Trainer, TrainingState
from rnn_engine.backward.contract import state_shapes, trained_fields
from rnn_engine.errors import DeviceError
from rnn_engine.forward.pairs import Pairs, half_names
from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.loading.runner import open_model
from rnn_engine.loading.settings import LoraSettings
from rnn_engine.loading.trainer import TrainerSize, find_pairs
from rnn_engine.model import LoraChoice
from rnn_engine.model.lora import write_lora
from rnn_engine.tensor_files.formats import open_source
from rnn_engine.types import ModelShape
from tests.backward.test_gradients import ODD_RANKS, make_documents
from tests.support.models import TensorModel, random_model, save_safetensors, tiny_shape
from tests.support.older_models import tiny_v5, tiny_v6
from tests.support.quantised import rounded
from tests.support.reference import relative_error
from tests.support.trainers import make_cpu_trainer, make_gpu_trainer

V7 = tiny_shape(layers=2, width=48, head_size=16, ffn=100, vocab=40, ranks=ODD_RANKS)
SIZES: dict[str, tuple[ModelShape, LoraSettings]] = {
    "v7": (V7, LoraSettings(rank=5, alpha=7.0)),
    "v7, one matrix of each part, rank 1": (V7, LoraSettings(1, 3.0, ("ffn.value", "att.output"))),
    "v7, PiSSA": (V7, LoraSettings(rank=5, alpha=7.0, init="pissa")),
    "v7, PiSSA and the state": (V7, LoraSettings(rank=8, alpha=4.0, targets=("att",), init="pissa", train_state=True)),
    "v6, and the state": (
        tiny_v6(layers=2, width=48, head_size=24, ffn=53, vocab=97),
        LoraSettings(3, 4.0, train_state=True),
    ),
    "v6": (tiny_v6(layers=2, width=48, head_size=24, ffn=53, vocab=97), LoraSettings(rank=3, alpha=4.0)),
    "v7 with vectors": (V7, LoraSettings(4, 7.0, ("att.key",), train_vectors=True)),
    "v6 with vectors": (tiny_v6(layers=2, width=72, head_size=24), LoraSettings(1, 2.0, ("ffn",), train_vectors=True)),
    "v5.0": (tiny_v5("v5.0", layers=1, width=80, head_size=40, ffn=53, vocab=12), LoraSettings(rank=17, alpha=4.0)),
}
LENGTHS = (17, 1, 9)
LIMITS: dict[str, Any] = {
    "optimizer": Optimizer(),
    "trains_shifts": False,
    "max_documents": len(LENGTHS),
    "max_tokens": 40,
}


def random_pairs(pairs: Pairs, shape: ModelShape | None = None) -> TrainingState:
    """Return pairs whose product matters beside the matrices, perhaps a state, too, and moments of zero."""
    chance = np.random.default_rng(8)
    shapes = {**({} if shape is None else state_shapes(shape)), **pairs.shapes}
    halves = {
        name: chance.normal(0.5 * (len(size) == 1), 0.2, size).astype(np.float32) for name, size in shapes.items()
    }
    fields = () if shape is None else trained_fields(shape, trains_shifts=False)
    zeros = {name: np.zeros_like(halves[name]) for name in (*fields, *pairs.shapes)}
    return TrainingState(halves, zeros, zeros, 0)


def merged(model: TensorModel, pairs: Pairs, halves: dict[str, Any]) -> TensorModel:
    tensors = {**model.tensors}
    for name in pairs.matrices:
        down, up = (halves[half].astype(np.float64) for half in half_names(name))
        tensors[name] = tensors[name].astype(np.float64) + pairs.scale * (up @ down)
    return TensorModel(model.shape, {**tensors, **{name: halves[name] for name in pairs.vectors}})


def gradients(trainer: Trainer, start: TrainingState, calls: Sequence[Sequence[int]]) -> tuple[list[float], Any]:
    trainer.write(start)
    losses = []
    for lengths in calls:
        documents = make_documents(lengths, trainer.shape.vocab_size)
        losses += [trainer.loss(documents), trainer.accumulate(documents, 0.5)]
    return losses, trainer.gradient()


@pytest.mark.parametrize("name", ["v7", "v7, PiSSA", "v6", "v5.0", "v7 with vectors", "v6 with vectors"])
def test_the_gradient_is_the_slope_of_the_loss_of_the_merged_model(name: str) -> None:
    shape, settings = SIZES[name]
    model = random_model(shape, seed=51)
    pairs = find_pairs(settings, model.tensors)

    def make(model: TensorModel, pairs: Pairs | None = None) -> Trainer:
        return make_cpu_trainer(model, pairs=pairs, dtype=np.float64, **LIMITS)

    start = random_pairs(pairs)
    losses, gradient = gradients(make(model, pairs), start, [LENGTHS])
    documents = make_documents(LENGTHS, shape.vocab_size)
    loss = make(merged(model, pairs, dict(start.state))).loss(documents)
    assert losses == pytest.approx([loss, loss], rel=1e-12)
    chance = np.random.default_rng(9)
    trained = settings.rank
    for half, values in gradient.items():
        direction = chance.normal(size=values.shape)
        if half in pairs.halves:
            fixed = np.s_[trained:] if half.endswith("lora_A") else np.s_[:, trained:]
            direction[fixed] = 0
            assert not values[fixed].any()
        sides = [
            make(merged(model, pairs, {**start.state, half: start.state[half] + step * direction})).loss(documents)
            for step in (1e-5, -1e-5)
        ]
        slope = 0.5 * (sides[0] - sides[1]) / 2e-5
        assert abs(np.sum(values * direction) - slope) < 1e-5 * np.linalg.norm(values), half


def test_the_state_beside_pairs_has_the_gradient_of_the_merged_model() -> None:
    shape, settings = SIZES["v7, PiSSA and the state"]
    model = random_model(shape, seed=51)
    pairs = find_pairs(settings, model.tensors)
    start = random_pairs(pairs, shape)
    fields = {name: start.state[name] for name in state_shapes(shape)}
    moments = {name: values for name, values in start.first.items() if name in fields}
    plain = make_cpu_trainer(merged(model, pairs, dict(start.state)), dtype=np.float64, **LIMITS)
    _, expected = gradients(plain, TrainingState(fields, moments, moments, 0), [LENGTHS])
    both = make_cpu_trainer(model, pairs=pairs, state_rate=5.0, dtype=np.float64, **LIMITS)
    _, found = gradients(both, start, [LENGTHS])
    assert list(found) == [*expected, *pairs.shapes]
    for name, values in expected.items():
        assert relative_error(found[name], values) < 1e-6, name
    both.update(0.01)
    changes = {name: np.abs(values - start.state[name]).max() for name, values in both.read().state.items()}
    assert changes["wkv"] == pytest.approx(0.05, rel=1e-3)
    assert changes["blocks.0.att.key.lora_A"] == pytest.approx(0.01, rel=1e-3)


def test_pissa_begins_with_the_greatest_singular_values_and_the_model_as_it_is() -> None:
    shape, settings = SIZES["v7, PiSSA"]
    model = random_model(shape, seed=51)
    pairs = find_pairs(settings, model.tensors)
    start = pairs.decompose(model.tensor, seed=3)
    assert all(np.array_equal(values, start[name]) for name, values in pairs.decompose(model.tensor, seed=3).items())
    for name, (outer, inner) in pairs.matrices.items():
        down, up = (start[half] for half in half_names(name))
        assert (down.shape, up.shape) == ((10, inner), (outer, 10))
        assert np.array_equal(down[:5], down[5:])
        assert np.array_equal(up[:, :5], -up[:, 5:])
        left, values, right = np.linalg.svd(model.tensors[name].astype(np.float64))
        greatest = left[:, :5] * values[:5] @ right[:5]
        found = settings.alpha / settings.rank * (up[:, :5] @ down[:5])
        rest = np.linalg.norm(values[5:])
        assert np.linalg.norm(model.tensors[name] - found) < 1.01 * rest
        assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(greatest), rel=1e-2)
    documents = make_documents(LENGTHS, shape.vocab_size)
    plain = make_cpu_trainer(model, **LIMITS).loss(documents)
    for make in (make_cpu_trainer, make_gpu_trainer):
        with closing(make(model, pairs=pairs, **LIMITS)) as trainer:
            trainer.write(replace(random_pairs(pairs), state=start))
            assert trainer.loss(documents) == pytest.approx(plain, rel=1e-5)


def check(shape: ModelShape, settings: LoraSettings, weights: str = "f32", kind: str = "software") -> None:
    """Compare a device with numpy in f64: losses, gradients, and what is read after an update."""
    chance = np.random.default_rng(53)
    exact = random_model(shape, seed=51).tensors
    model = TensorModel(
        shape, {k: (v * chance.uniform(0.99, 1.01, v.shape)).astype(np.float32) for k, v in exact.items()}
    )
    oracle = model if weights == "f32" else rounded(model, WeightChoice.parse(weights))
    pairs = find_pairs(settings, model.tensors)
    start = random_pairs(pairs, shape if settings.train_state else None)
    more: dict[str, Any] = {"pairs": pairs, "state_rate": TrainerSize(lora=settings).state_rate, **LIMITS}
    calls = [LENGTHS, (1,), (40,)]
    reference = make_cpu_trainer(oracle, dtype=np.float64, **more)
    expected_losses, expected = gradients(reference, start, calls)
    with closing(make_gpu_trainer(model, kind=kind, weights=weights, **more)) as trainer:
        losses, found = gradients(trainer, start, calls)
        assert losses == pytest.approx(expected_losses, rel=1e-4)
        assert list(found) == list(expected) == list(start.first)
        for name, values in expected.items():
            assert relative_error(found[name], values) < 1e-4, name
        assert trainer.update(0.01) == pytest.approx(reference.update(0.01), rel=1e-4)
        after = trainer.read()
    fixed = start.state if settings.init == "pissa" else {}
    for name, values in fixed.items():
        last = np.s_[settings.rank :] if name.endswith("lora_A") else np.s_[:, settings.rank :]
        if name in pairs.shapes:
            assert np.array_equal(after.state[name][last], values[last]), name
    for part in ("state", "first"):
        for name, values in getattr(reference.read(), part).items():
            assert relative_error(getattr(after, part)[name], values) < 1e-3, name


@pytest.mark.parametrize(
    ("name", "vectors"),
    [
        ("v7 with vectors", "att.x_r att.x_w att.x_k att.x_v att.x_a att.x_g att.w0 att.a0 att.v0 ffn.x_k"),
        ("v6 with vectors", "".join(f"att.time_maa_{kind} " for kind in "xwkvrg") + "att.time_decay"),
    ],
)
def test_a_file_with_vectors_merges_into_the_model_that_was_trained(name: str, vectors: str, tmp_path: Path) -> None:
    shape, settings = SIZES[name]
    model = random_model(shape, seed=51)
    pairs = find_pairs(settings, model.tensors)
    expected = {f"blocks.{layer}.{vector}" for layer in range(2) for vector in vectors.split()}
    if shape.version == "v6":
        expected |= {f"blocks.{layer}.ffn.time_maa_{kind}" for layer in range(2) for kind in "kr"}
    assert pairs.vectors.keys() == expected - {"blocks.0.att.v0"}
    start = random_pairs(pairs)
    path = save_safetensors(model, tmp_path / "m.safetensors")
    for file in (tmp_path / "lora.pth", tmp_path / "lora.safetensors"):
        write_lora(file, start.state, settings.alpha, {})
        with closing(open_source(file)) as source:
            assert {source.tensors[vector].shape for vector in pairs.vectors} == {(1, 1, shape.width)}
        with open_model(path, [LoraChoice(file, settings.alpha)]) as opened:
            for tensor, values in merged(model, pairs, dict(start.state)).tensors.items():
                assert relative_error(opened.tensor(tensor), values) < 1e-6, tensor


@pytest.mark.parametrize("name", SIZES)
def test_a_device_agrees_with_numpy(name: str) -> None:
    check(*SIZES[name])


def test_the_kernels_of_hardware() -> None:
    shape, settings = SIZES["v7"]
    check(shape, replace(settings, train_vectors=True), kind="discrete")


@pytest.mark.parametrize("case", [(tiny_shape(), LoraSettings(4, 8.0)), SIZES["v6 with vectors"]], ids=["v7", "v6"])
def test_rounded_weights(case: tuple[ModelShape, LoraSettings]) -> None:
    check(*case, "f16,att=int8,ffn=int4")


def test_pairs_that_fit_no_binding_are_refused() -> None:
    model = random_model(V7, seed=51)
    pairs = find_pairs(LoraSettings(512, 1.0), model.tensors)
    with pytest.raises(DeviceError, match="pairs of rank 512 in all are too large for the device; expected a"):
        make_gpu_trainer(model, pairs=pairs, max_binding_bytes=250_000, **LIMITS)


@pytest.mark.parametrize("name", ["v7", "v7, PiSSA and the state", "v6 with vectors"])
@pytest.mark.parametrize("make", [make_cpu_trainer, make_gpu_trainer])
def test_what_was_read_goes_on_with_the_same_bits(make: Callable[..., Trainer], name: str) -> None:
    shape, settings = SIZES[name]
    model = random_model(shape, seed=51)
    pairs = find_pairs(settings, model.tensors)
    documents = make_documents(LENGTHS, shape.vocab_size)

    def learn(start: TrainingState, count: int) -> TrainingState:
        with closing(make(model, pairs=pairs, state_rate=TrainerSize(lora=settings).state_rate, **LIMITS)) as trainer:
            trainer.write(start)
            for _ in range(count):
                trainer.accumulate(documents, 0.1)
                trainer.update(0.01)
            return trainer.read()

    start = random_pairs(pairs, shape if settings.train_state else None)
    drawn = pairs.decompose(model.tensor, 3) if pairs.num_fixed else pairs.draw(3)
    start = replace(start, state={**start.state, **drawn})
    whole, again = learn(start, 3), learn(learn(start, 1), 2)
    assert whole.num_updates == again.num_updates == 3
    for part in ("state", "first", "second"):
        for name, values in getattr(whole, part).items():
            assert np.array_equal(values, getattr(again, part)[name]), name
    assert all(values.any() for values in whole.state.values())
