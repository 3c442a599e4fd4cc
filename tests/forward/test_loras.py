"""LoRAs that are not merged: each sequence of a batch gives what the model gives with its own LoRA merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest

from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward import SplitRunner
from rnn_engine.forward.cpu import CpuRunner
from rnn_engine.forward.cpu_matmul import load_layers
from rnn_engine.forward.loras import DeviceLoras
from rnn_engine.forward.matmul import LoadedPart
from rnn_engine.forward.split_runner import PartRunner
from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.loading.placement import cut
from rnn_engine.loading.runner import RunnerSize
from rnn_engine.types import F32, LoraPairs, LoraRoom, Model, TokenDraw, TokenRun, TracingRunner, run_step
from rnn_engine.versions.table import VERSIONS
from rnn_engine_states.frozen import freeze_lora
from tests.support.cpu import make_cpu_runner
from tests.support.gpu import make_gpu_runner
from tests.support.models import TensorModel
from tests.support.results_contract import (
    MAX_ROWS,
    MAX_TOKENS,
    MODEL,
    NUM_CANDIDATES,
    NUM_SLOTS,
    OTHER_MODELS,
    TOKENS,
    Limits,
)

pytestmark = pytest.mark.usefixtures("divided_steps")

MODELS = {"v7": MODEL, "v6": OTHER_MODELS["v6"], "v5.2": OTHER_MODELS["v5.2"]}
PLACES, RANK = 3, 5
LIMITS = Limits(num_slots=NUM_SLOTS, max_tokens=MAX_TOKENS, max_rows=MAX_ROWS, num_candidates=NUM_CANDIDATES)


def room_of(model: Model) -> LoraRoom:
    return RunnerSize(max_loras=PLACES, max_lora_rank=RANK).loras_of(model)


def make_lora(model: Model, rank: int, seed: int, part: str = "") -> LoraPairs:
    """Return a LoRA for all projections whose names contain `part`."""
    generator = np.random.default_rng(seed)
    return freeze_lora(
        {
            name: (generator.normal(0, 0.2, (rank, inner)), generator.normal(0, 0.2, (outer, rank)))
            for name, (outer, inner) in room_of(model).matrices.items()
            if part in name
        },
        "lora",
    )


def merge(model: TensorModel, lora: LoraPairs) -> TensorModel:
    tensors = {name: model.tensor(name) for name in model.names}
    for name, (down, up) in lora.pairs.items():
        tensors[name] = (tensors[name].astype(np.float32) + up @ down).astype(np.float32)
    return TensorModel(model.shape, tensors)


def on_gpu(model: Model) -> PartRunner:
    return make_gpu_runner(model, lora_room=room_of(model), **LIMITS)


def on_hardware(model: Model) -> PartRunner:
    return make_gpu_runner(model, lora_room=room_of(model), kind="discrete", **LIMITS)


def in_numpy(model: Model) -> PartRunner:
    return make_cpu_runner(model, lora_room=room_of(model), **LIMITS)


def in_graphs(model: Model) -> PartRunner:
    run_layers = VERSIONS.get(model.shape.version).run_layers
    format_of = WeightChoice.parse("f32").of(model.shape)
    room = room_of(model)
    weights, layers = load_layers(model, run_layers, format_of, in_bytes=False, num_threads=2, lora_room=room)
    return CpuRunner(weights, layers, lora_room=room, **LIMITS)


def on_two_devices(model: Model) -> TracingRunner:
    return SplitRunner(
        model.shape, [on_gpu(part) if device == "0" else in_numpy(part) for part, device in cut(model, "0:1,cpu:1")]
    )


@pytest.fixture(params=[on_gpu, on_hardware, in_numpy, in_graphs, on_two_devices], ids=lambda make: make.__name__)
def make_runner(request: pytest.FixtureRequest) -> Callable[[Model], TracingRunner]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest) -> TensorModel:
    return MODELS[request.param]


@pytest.fixture
def runner(make_runner: Callable[[Model], TracingRunner], model: TensorModel) -> Iterator[TracingRunner]:
    with closing(make_runner(model)) as made:
        yield made


def rows_of(runner: TracingRunner, batch: list[TokenRun]) -> list[F32]:
    readout = run_step(runner, batch)
    return [readout.full_row(row) for row in range(sum(run.rows for run in batch))]


def alone(model: TensorModel, lora: LoraPairs | None, *runs: TokenRun) -> list[F32]:
    """Return the rows of runs, one after the other, of a model into which `lora` is merged."""
    reference = make_cpu_runner(model if lora is None else merge(model, lora), **LIMITS)
    return [row for run in runs for row in rows_of(reference, [TokenRun(0, run.tokens, run.rows)])]


def test_each_sequence_runs_with_its_own_lora(runner: TracingRunner, model: TensorModel) -> None:
    loras = {0: make_lora(model, 5, 1), 2: make_lora(model, 2, 2, "att."), None: None}
    for place, lora in loras.items():
        if place is not None and lora is not None:
            runner.write_lora(place, lora)
    places = [0, None, 2, 0]
    steps = [
        [TokenRun(slot, TOKENS[slot][: 5 + slot], 2, lora=place) for slot, place in enumerate(places)],
        [TokenRun(slot, [slot + 3], 1, lora=place) for slot, place in enumerate(places)],
        [TokenRun(2, [9], 1, lora=2)],
    ]
    found = [rows_of(runner, step) for step in steps]
    for slot, place in enumerate(places):
        runs = [run for step in steps for run in step if run.slot == slot]
        expected = alone(model, loras[place], *runs)
        own = [*found[0][2 * slot : 2 * slot + 2], found[1][slot], *(found[2] if slot == 2 else ())]
        np.testing.assert_allclose(own, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


def test_another_lora_takes_a_place_and_leaves_the_others(runner: TracingRunner, model: TensorModel) -> None:
    first, second, third = make_lora(model, 5, 1), make_lora(model, 1, 2), make_lora(model, 3, 3, "ffn.")
    runner.write_lora(0, first)
    runner.write_lora(1, second)
    runner.write_lora(0, third)
    found = rows_of(runner, [TokenRun(0, TOKENS[0], 1, lora=0), TokenRun(1, TOKENS[1], 1, lora=1)])
    expected = [*alone(model, third, TokenRun(0, TOKENS[0], 1)), *alone(model, second, TokenRun(0, TOKENS[1], 1))]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


def test_only_matrices_that_a_lora_changes_are_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded: list[LoadedPart] = []
    upload = DeviceLoras._upload

    def spy(loras: DeviceLoras, part: LoadedPart, number: int, rows: F32, first_panel: int) -> None:
        uploaded.append(part)
        upload(loras, part, number, rows, first_panel)

    monkeypatch.setattr(DeviceLoras, "_upload", spy)
    lora = make_lora(MODEL, 5, 1, "1.ffn.value")
    assert len(lora.pairs) == 1
    with closing(on_gpu(MODEL)) as runner:
        runner.write_lora(0, lora)
    assert len(uploaded) == 2


def test_a_step_without_loras_has_the_same_bits_as_in_a_runner_without_room() -> None:
    without = make_gpu_runner(MODEL, **LIMITS)
    with closing(on_gpu(MODEL)) as runner, closing(without):
        runner.write_lora(0, make_lora(MODEL, 5, 1))
        for batch in ([TokenRun(0, TOKENS[0], 3), TokenRun(1, TOKENS[1], 1)], [TokenRun(1, [4], 1)]):
            np.testing.assert_array_equal(rows_of(runner, batch), rows_of(without, batch))


def test_the_device_draws_tokens_of_a_sequence_with_a_lora() -> None:
    lora = make_lora(MODEL, 5, 1)
    with closing(on_gpu(MODEL)) as runner:
        runner.write_lora(1, lora)
        run_step(runner, [TokenRun(0, TOKENS[0][:4], lora=1)])
        drawn = run_step(runner, [TokenRun(0, [7], 1, lora=1, draw=TokenDraw(0, 0, 1, 1.0, 1.0, count=4))]).drawn[0]
    tokens = [7, *drawn.tokens]
    runs = [TokenRun(0, TOKENS[0][:4]), *(TokenRun(0, [token], 1) for token in tokens[: drawn.num_run])]
    expected = [int(row.argmax()) for row in alone(MODEL, lora, *runs)]
    assert list(drawn.tokens) == expected[: len(drawn.tokens)]
    assert len(drawn.tokens) > 1


def test_what_does_not_fit_is_refused(runner: TracingRunner, model: TensorModel) -> None:
    name = next(iter(room_of(model).matrices))
    half = np.ones((1, 3), np.float32)
    for place, lora, field in (
        (3, make_lora(model, 1, 1), "lora place"),
        (-1, make_lora(model, 1, 1), "lora place"),
        (0, make_lora(model, 6, 1), "rank 6"),
        (0, freeze_lora({name: (half, half.T)}, "lora"), name),
        (0, freeze_lora({"emb.weight": (half, half.T)}, "lora"), "emb.weight"),
    ):
        with pytest.raises(InvalidRequestError, match=field):
            runner.write_lora(place, lora)
    with pytest.raises(InvalidRequestError, match="run 0: lora"):
        runner.submit([TokenRun(0, [1], lora=3)])
