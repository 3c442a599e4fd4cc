"""The choice of a device on machines without a GPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rnn_engine.engine import Engine
from rnn_engine.gpu import DeviceInfo
from rnn_engine.loading import placement
from rnn_engine.loading.memory import MemoryPlan
from rnn_engine.loading.parts import place_model
from rnn_engine.loading.placement import choose_device
from rnn_engine.loading.runner import RunnerSize, open_model
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.model import ModelFile
from tests.support.models import random_model, save_safetensors, tiny_shape

SOFTWARE = DeviceInfo(0, "software", "software", "Vulkan", "any")
DISCRETE = DeviceInfo(1, "discrete", "discrete", "Vulkan", "any")


def devices(monkeypatch: pytest.MonkeyPatch, *found: DeviceInfo) -> None:
    monkeypatch.setattr(placement, "list_devices", lambda: list(found))


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ModelFile]:
    path = tmp_path / "tiny.safetensors"
    save_safetensors(random_model(tiny_shape(), seed=1), path, "f32")
    with open_model(path, ()) as model:
        yield model


@pytest.mark.parametrize(
    ("found", "device", "chosen"),
    [
        ((SOFTWARE, DISCRETE), "auto", "auto"),
        ((), "auto", "cpu"),
        ((SOFTWARE,), "auto", "cpu"),
        ((SOFTWARE,), "0", "0"),
        ((SOFTWARE,), "cpu", "cpu"),
    ],
)
def test_numpy_is_chosen_only_for_auto_and_without_a_gpu(
    model: ModelFile, monkeypatch: pytest.MonkeyPatch, found: tuple[DeviceInfo, ...], device: str, chosen: str
) -> None:
    devices(monkeypatch, *found)
    assert choose_device(model, device).device == chosen


@pytest.mark.parametrize(("weights", "device"), [("f16", "auto"), ("f32", "cpu")])
def test_weights_that_were_asked_for_are_not_given_up_for_speed(
    model: ModelFile, monkeypatch: pytest.MonkeyPatch, weights: str, device: str
) -> None:
    devices(monkeypatch, SOFTWARE)
    settings = LoadSettings(weights=weights)
    choice, plan = place_model(model, settings, RunnerSize(1))
    assert (choice.device, plan) == (device, MemoryPlan(weights, 0, device))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (LoadSettings("cpu"), "tiny: device the processor, weights f32, 3 slots. Why this device: as --device says"),
        (
            LoadSettings("0", weights="auto"),
            ", weights f16 (the best format that fits), 3 slots. Why this device: as --device says",
        ),
        (LoadSettings(weights="f16"), ", weights f16, 3 slots. Why this device: cpu has no weights in f16"),
    ],
)
async def test_the_log_says_where_a_model_runs_and_why(
    model: ModelFile, settings: LoadSettings, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "rnn_engine.loading.parts"):
        engine = await Engine.load(model.path, settings, num_slots=3)
        await engine.close()
    [line] = [message for message in caplog.messages if message.startswith("tiny: device ")]
    assert words in line


def test_the_reason_names_the_number_of_devices(model: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    for found, reason in (
        ((DISCRETE,), "the only device that WebGPU finds"),
        ((SOFTWARE, DISCRETE), "the first of the fastest kind of the 2 devices that WebGPU finds"),
    ):
        devices(monkeypatch, *found)
        assert choose_device(model, "auto").reason == reason


@pytest.mark.parametrize(("kept", "chosen"), [(False, "auto"), (True, "cpu")])
def test_a_model_too_large_for_numpy_takes_the_software_driver(
    model: ModelFile, monkeypatch: pytest.MonkeyPatch, kept: bool, chosen: str
) -> None:
    devices(monkeypatch, SOFTWARE)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=4096))
    monkeypatch.setattr(placement, "has_onnxruntime", lambda: True)
    monkeypatch.setattr(placement, "has_kept_blocks", lambda _: kept)
    assert choose_device(model, "auto").device == chosen
