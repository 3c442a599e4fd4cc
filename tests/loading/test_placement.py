"""Models that are loaded onto several devices: how layers are divided, what is told, and the loss of one device."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.errors import DeviceMemoryError, InvalidRequestError
from rnn_engine.forward import CpuRunner, GpuRunner, SplitRunner
from rnn_engine.gpu import SizingDevice
from rnn_engine.interface import DevicePart
from rnn_engine.loading.memory import plan_memory
from rnn_engine.loading.parts import EngineParts, open_parts
from rnn_engine.loading.placement import cut
from rnn_engine.loading.runner import RunnerSize, load_runner, measure_runner, open_model
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.model import ModelFile
from rnn_engine.model.model_file import UnreadModel
from rnn_engine.types import TokenRun, run_step
from tests.support.models import random_model, save_safetensors, tiny_shape

SHAPE = tiny_shape(layers=6, vocab=300)
SIZE = RunnerSize(num_slots=2)
TOKENS = [5, 9, 200, 17]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_safetensors(random_model(SHAPE, seed=1), tmp_path_factory.mktemp("models") / "six.safetensors")


@pytest.fixture
def opened(path: Path) -> Iterator[ModelFile]:
    with open_model(path) as model:
        yield model


@contextmanager
def parts_of(path: Path, settings: LoadSettings) -> Iterator[EngineParts]:
    parts = open_parts(
        path, settings, name=None, num_slots=2, cache=None, states=StateSettings(), progress=lambda *_: None
    )
    with closing(parts):
        yield parts


def needs(model: ModelFile, device: str, weights: str = "f16") -> list[int]:
    """Return the bytes on each GPU of a placement."""
    unread = UnreadModel(model.shape, model.tensors)
    return [
        measure_runner(part, SizingDevice.like(own), SIZE, weights=weights).total
        for part, own in cut(unread, device)
        if own != "cpu"
    ]


def test_two_equal_devices_are_filled_alike(opened: ModelFile) -> None:
    plan = plan_memory(opened, "0,0", SIZE, weights="f16", device_memory=1 << 30)
    first, second = needs(opened, plan.device)
    assert plan.device in ("0:3,0:3", "0:2,0:4", "0:4,0:2")
    of_layer = needs(opened, "0:3,0:3")[0] - needs(opened, "0:2,0:4")[0]
    assert abs(first - second) <= of_layer


def test_a_device_gets_as_many_layers_as_fit_before_the_processor(opened: ModelFile) -> None:
    room = needs(opened, "0:4,cpu:2")[0]
    assert plan_memory(opened, "0,cpu", SIZE, weights="f16", device_memory=room).device == "0:4,cpu:2"
    assert plan_memory(opened, "0,cpu", SIZE, weights="f16", device_memory=room - 1).device == "0:3,cpu:3"
    assert plan_memory(opened, "0,cpu", SIZE, weights="f16", device_memory=1 << 30).device == "0:5,cpu:1"


def test_weights_may_be_chosen_by_the_room_of_all_devices(opened: ModelFile) -> None:
    room = max(needs(opened, "0:3,0:3", "int8"))
    plan = plan_memory(opened, "0:3,0:3", SIZE, weights="auto", device_memory=room)
    assert (plan.weights, plan.device) == ("int8", "0:3,0:3")


def test_what_does_not_fit_on_all_is_refused(opened: ModelFile) -> None:
    with pytest.raises(DeviceMemoryError, match=r"does not fit on --device 0:3,0:3 with weights int4: it needs .* MB"):
        plan_memory(opened, "0:3,0:3", SIZE, weights="auto", device_memory=1000)


def test_spare_slots_fit_on_all(opened: ModelFile) -> None:
    room = max(needs(opened, "0:3,0:3")) + 3 * SHAPE.state_bytes
    size = RunnerSize(2, spare_bytes=1 << 30)
    plan = plan_memory(opened, "0:3,0:3", size, weights="f16", device_memory=room)
    assert 3 * SHAPE.state_bytes < plan.spare_bytes <= 6 * SHAPE.state_bytes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (LoadSettings("0,cpu", "none", split=(5, 2)), "split: '5,2' is not allowed; expected a number of layers for"),
        (LoadSettings("0", "none", split=(6,)), "such as 3,3 with --device 0,1"),
        (LoadSettings("0:2,cpu:2", "none"), "device: '0:2,cpu:2' is not allowed; .* 6 in all"),
        (LoadSettings(",".join(["0"] * 7), "none"), "device: .* is not allowed; expected at most 6 devices"),
    ],
)
def test_placements_that_do_not_fit_the_model_are_refused(path: Path, settings: LoadSettings, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message), parts_of(path, settings):
        pass


def test_an_engine_tells_its_devices_and_only_a_lost_one_is_loaded_again(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with open_model(path) as model, closing(load_runner(model, "0", RunnerSize(2), weights="f32")) as whole:
        expected = run_step(whole, [TokenRun(0, TOKENS, rows=1)]).full_row(0)
    with parts_of(path, LoadSettings("0,cpu", "none", weights="f32", split=(4, 2), speculate=0)) as parts:
        first = parts.runner
        assert isinstance(first, SplitRunner)
        gpu, cpu = first.parts
        assert isinstance(gpu, GpuRunner)
        assert isinstance(cpu, CpuRunner)
        name, num_bytes = gpu.device.info.name, gpu.memory.total
        assert parts.info.device == f"{name} + cpu"
        assert parts.info.parts == (DevicePart(name, 0, 3, num_bytes), DevicePart("cpu", 4, 5))
        assert parts.info.device_bytes == num_bytes
        found = run_step(first, [TokenRun(0, TOKENS, rows=1)]).full_row(0)
        assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
        first.write_state(1, first.read_state(0))
        gpu.device.wgpu_device.destroy()
        second = parts.reopen(lambda: None)
        assert isinstance(second, SplitRunner)
        assert second.parts[1] is cpu
        assert second.parts[0] is not gpu
        second.write_state(0, None)
        assert np.array_equal(run_step(second, [TokenRun(0, TOKENS, rows=1)]).full_row(0), found)
