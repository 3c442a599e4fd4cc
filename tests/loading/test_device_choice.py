"""The choice of a device on machines without a GPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rnn_engine.engine import Engine
from rnn_engine.files import write_record
from rnn_engine.gpu import DeviceInfo
from rnn_engine.loading import device_choice
from rnn_engine.loading.device_choice import FirstLayers, Speed, choose_device, measure_speed
from rnn_engine.loading.memory import MemoryPlan
from rnn_engine.loading.parts import place_model
from rnn_engine.loading.runner import RunnerSize, load_runner, open_model
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.model import ModelFile
from rnn_engine.requests import GenerateRequest, Started
from rnn_engine.types import Model, Runner, TokenRun, run_step
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from tests.support.models import random_model, save_safetensors, tiny_shape

SOFTWARE = DeviceInfo(0, "software", "software", "Vulkan", "any")
DISCRETE = DeviceInfo(1, "discrete", "discrete", "Vulkan", "any")


def devices(monkeypatch: pytest.MonkeyPatch, *found: DeviceInfo) -> None:
    monkeypatch.setattr(device_choice, "list_devices", lambda: list(found))


def speeds(monkeypatch: pytest.MonkeyPatch, software: Speed, numpy: Speed) -> None:
    found = iter((software, numpy))
    monkeypatch.setattr(device_choice, "measure_speed", lambda *_: next(found))
    monkeypatch.setattr(device_choice, "_SMALL_BYTES", 0)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ModelFile]:
    path = tmp_path / "tiny.safetensors"
    save_safetensors(random_model(tiny_shape(), seed=1), path, "f32")
    with open_model(path, ()) as model:
        yield model


@pytest.mark.parametrize(
    ("software", "numpy", "chosen", "reason"),
    [
        (Speed(100, 10), Speed(110, 11), "cpu", "1.1 times as fast with numpy as on software"),
        (Speed(100, 10), Speed(90, 9), "auto", "1.1 times as fast on software as with numpy"),
        (Speed(1000, 10), Speed(100, 10), "auto", "1.4 times as fast on software"),
        (Speed(100, 100), Speed(1000, 100), "cpu", "4.0 times as fast with numpy"),
    ],
)
def test_the_device_on_which_a_request_takes_less_time_is_chosen(
    model: ModelFile, monkeypatch: pytest.MonkeyPatch, software: Speed, numpy: Speed, chosen: str, reason: str
) -> None:
    devices(monkeypatch, SOFTWARE)
    speeds(monkeypatch, software, numpy)
    choice = choose_device(model, "auto", lambda _: "f16", 4)
    assert choice.device == chosen
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("found", "device", "chosen"),
    [
        ((SOFTWARE, DISCRETE), "auto", "auto"),
        ((), "auto", "cpu"),
        ((SOFTWARE,), "auto", "cpu"),  # the model is small
        ((SOFTWARE,), "0", "0"),
        ((SOFTWARE,), "cpu", "cpu"),
    ],
)
def test_nothing_is_measured_where_there_is_no_choice(
    model: ModelFile, monkeypatch: pytest.MonkeyPatch, found: tuple[DeviceInfo, ...], device: str, chosen: str
) -> None:
    devices(monkeypatch, *found)
    monkeypatch.setattr(device_choice, "measure_speed", None)
    assert choose_device(model, device, lambda _: "f16", 4).device == chosen


@pytest.mark.parametrize(("weights", "device"), [("f16", "auto"), ("f32", "cpu")])
def test_weights_that_were_asked_for_are_not_given_up_for_speed(
    model: ModelFile, monkeypatch: pytest.MonkeyPatch, weights: str, device: str
) -> None:
    devices(monkeypatch, SOFTWARE)
    speeds(monkeypatch, Speed(100, 10), Speed(1000, 100))
    settings = LoadSettings(weights=weights)
    choice, plan = place_model(model, settings, RunnerSize(1))
    assert (choice.device, plan) == (device, MemoryPlan(weights, 0))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            LoadSettings("cpu"),
            "tiny: device the processor, weights f32, 3 slots. Why this device: as --device says",
        ),
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


def test_the_choice_of_a_folder_of_cached_states_is_kept(
    model: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices(monkeypatch, SOFTWARE)
    speeds(monkeypatch, Speed(100, 10), Speed(300, 30))
    first = choose_device(model, "auto", lambda _: "f16", 4, tmp_path)
    monkeypatch.setattr(device_choice, "measure_speed", None)  # nothing is measured again
    again = choose_device(model, "auto", lambda _: "f16", 2, tmp_path)
    assert (first.device, again.device) == ("cpu", "cpu")
    reason = f"as {tmp_path / 'device.json'} says, so that kept states can be used; when it was written, {first.reason}"
    assert again.reason == reason
    assert choose_device(model, "0", lambda _: "f16", 4, tmp_path).device == "0"
    devices(monkeypatch, SOFTWARE, DISCRETE)
    assert choose_device(model, "auto", lambda _: "f16", 4, tmp_path).device == "auto"


@pytest.mark.parametrize("spoilt", ["another model", "damaged"])
def test_a_record_that_does_not_fit_is_written_anew(
    model: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    devices(monkeypatch, SOFTWARE)
    record = tmp_path / "device.json"
    if spoilt == "damaged":
        record.write_text('{"device": "cpu"}')
    else:
        write_record(record, {"model": "another", "device": "cpu", "reason": "it was faster"})
    speeds(monkeypatch, Speed(100, 10), Speed(100, 10))
    assert choose_device(model, "auto", lambda _: "f16", 4, tmp_path).device == "auto"
    assert choose_device(model, "auto", lambda _: "f16", 4, tmp_path).reason.startswith(f"as {record} says")


def test_a_choice_that_cannot_be_recorded_is_measured_again(
    model: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    devices(monkeypatch, SOFTWARE)
    (tmp_path / "file").touch()
    for _ in range(2):
        speeds(monkeypatch, Speed(100, 10), Speed(300, 30))
        assert choose_device(model, "auto", lambda _: "f16", 4, tmp_path / "file").device == "cpu"
    assert "can't be recorded, so the next load measures again" in caplog.text


async def test_cached_states_are_found_after_a_restart_that_would_have_chosen_another_device(
    model: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices(monkeypatch, SOFTWARE)
    cache = CacheConfig(disk=DiskConfig(tmp_path / "states", write_after=0))
    prompt = tuple(range(1, 9))
    cached = []
    for numpy in (Speed(300, 30), Speed(50, 5)):
        speeds(monkeypatch, Speed(100, 10), numpy)
        engine = await Engine.load(model.path, num_slots=1, cache=cache)
        assert engine.info.device == "cpu"
        async for event in engine.generate(GenerateRequest(prompt, max_tokens=1)):
            if isinstance(event, Started):
                cached.append(event.cached_tokens)
        await engine.close()
    assert cached == [0, len(prompt)]


def test_the_reason_names_the_number_of_devices(model: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    for found, reason in (
        ((DISCRETE,), "the only device that WebGPU finds"),
        ((SOFTWARE, DISCRETE), "the first of the fastest kind of the 2 devices that WebGPU finds"),
    ):
        devices(monkeypatch, *found)
        assert choose_device(model, "auto", lambda _: "f16", 4).reason == reason


@pytest.mark.parametrize("choice", ["cpu", "auto"])
def test_both_devices_are_measured_on_a_real_model(model: ModelFile, choice: str) -> None:
    speed = measure_speed(model, lambda part: load_runner(part, choice, num_slots=2))
    assert 0 < speed.request_seconds < 600


def test_the_time_of_all_layers_follows_from_that_of_a_few() -> None:
    model = random_model(replace(tiny_shape(), num_layers=9), seed=1)
    loaded: list[int] = []

    def load(part: Model) -> Runner:
        loaded.append(part.shape.num_layers)
        return load_runner(part, "cpu", num_slots=1)

    now = 0.0

    def clock() -> float:  # a step of one layer lasts 3 s, one of three layers 5 s
        nonlocal now
        now += 2 + loaded[-1]
        return now

    speed = measure_speed(model, load, clock)
    assert loaded == [1, 3]
    assert speed.answer == pytest.approx(1 / 11)
    assert speed.prompt == pytest.approx(64 / 11)


def test_the_first_layers_of_a_model_are_a_model() -> None:
    model = random_model(tiny_shape(layers=3), seed=1)
    part = FirstLayers(model, 1)
    assert part.has("emb.weight")
    assert part.has("blocks.0.att.key.weight")
    assert not part.has("blocks.1.att.key.weight")
    assert {name.split(".")[1] for name in part.names if name.startswith("blocks.")} == {"0"}
    runner = load_runner(part, "cpu", num_slots=1)
    readout = run_step(runner, [TokenRun(0, [1, 2], rows=1)])
    assert readout.full_row(0).shape == (model.shape.vocab_size,)
    runner.close()
