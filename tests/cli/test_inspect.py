"""`rnn-engine inspect`: the facts of a file, as text and as JSON."""

from __future__ import annotations

import json
import re
from math import prod
from pathlib import Path

import pytest

from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS
from rnn_engine.loading.memory import inspect_model
from rnn_engine.loading.runner import open_model
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.types import DeviceMemory
from rnn_engine_states.cache.config import CacheConfig
from tests.support.cli import Command
from tests.support.gguf import save_gguf
from tests.support.loras import draw_pair, save_ai00
from tests.support.models import TensorModel, save_safetensors


def test_json_has_the_facts_and_what_each_format_takes(
    rnn_engine: Command, model_file: Path, tiny_model: TensorModel
) -> None:
    found = json.loads(rnn_engine("inspect", model_file, "--slots", 2, "--device-memory", "1G", "--json"))
    assert found["version"] == "v7"
    assert found["file_bytes"] == model_file.stat().st_size
    assert found["parameters"] == sum(prod(values.shape) for values in tiny_model.tensors.values())
    assert found["tensors"] == {"float32": len(tiny_model.tensors)}
    assert found["has_tuned_state"] is False
    assert found["slots"] == 2
    for device in found["devices"]:
        needs = {need["weights"]: need["num_bytes"] for need in device["needs"]}
        assert list(needs) == list(WEIGHT_FORMATS)
        assert needs["f32"] > needs["f16"] > needs["int8"] > needs["int4"]
        assert all(need["fits"] for need in device["needs"])


def test_a_lora_is_part_of_what_is_shown(
    rnn_engine: Command, model_file: Path, tiny_model: TensorModel, tmp_path: Path
) -> None:
    half = save_safetensors(tiny_model, tmp_path / "half.safetensors", "f16")
    pairs = {"blocks.0.att.key": draw_pair(tiny_model, "blocks.0.att.key.weight", rank=2)}
    lora = save_ai00(pairs, tmp_path / "lora.st")
    found = json.loads(rnn_engine("inspect", half, "--lora", f"{lora}:2", "--json"))
    assert found["tensors"] == {"float16": len(tiny_model.tensors) - 1, "float32": 1}


def test_a_quantised_file_is_told_as_it_is_kept_too(
    rnn_engine: Command, tiny_model: TensorModel, tmp_path: Path
) -> None:
    path = save_gguf(tiny_model, tmp_path / "quantised.gguf", "Q4_0")
    (device, *_) = json.loads(rnn_engine("inspect", path, "--json"))["devices"]
    assert [need["weights"] for need in device["needs"]] == ["stored", *WEIGHT_FORMATS]


def test_text_says_where_it_fits(rnn_engine: Command, model_file: Path) -> None:
    shown = rnn_engine("inspect", model_file, "--device-memory", "1K")
    assert "RWKV v7, layers 2, width 64" in shown
    assert "tuned state inside: no" in shown
    assert "too large" in shown


def test_the_layers_on_each_of_several_devices_are_told(rnn_engine: Command, model_file: Path) -> None:
    shown = rnn_engine("inspect", model_file, "--device", "0,cpu", "--split", "1,1")
    assert re.search(r"^layer 0 on .+: [\d.]+ MB\nlayer 1 on cpu$", shown, re.MULTILINE)
    first, last = json.loads(rnn_engine("inspect", model_file, "--device", "0:1,cpu:1", "--json"))["parts"]
    assert (first["first_layer"], first["last_layer"], last["first_layer"]) == (0, 0, 1)
    assert first["num_bytes"] > 0
    assert last["num_bytes"] is None


async def test_the_figures_are_those_of_a_server(model_file: Path) -> None:
    engine = await Engine.load(model_file, LoadSettings("0", "none"), num_slots=3, cache=CacheConfig())
    taken = engine.info.device_memory
    await engine.close()
    with open_model(model_file) as opened:
        need = next(need for need in inspect_model(opened, "none", 3).devices[0].needs if need.weights == "f16")
    assert taken == DeviceMemory(need.weight_bytes, need.slot_bytes + need.kept_bytes, need.buffer_bytes)
    assert taken.total == need.most_bytes > need.num_bytes


def test_text_names_what_takes_the_memory(rnn_engine: Command, model_file: Path) -> None:
    shown = rnn_engine("inspect", model_file, "--device-memory", "1G")
    assert f"file: {model_file.stat().st_size / 1e6:.1f} MB, " in shown
    assert re.search(r"format +weights +8 slots +kept states +buffers +in all", shown)
    needs = json.loads(rnn_engine("inspect", model_file, "--json"))["devices"][0]["needs"]
    assert "fits, keeps fewer" in rnn_engine("inspect", model_file, "--device-memory", needs[0]["num_bytes"])


def test_more_slots_take_more(rnn_engine: Command, model_file: Path) -> None:
    few, many = (
        json.loads(rnn_engine("inspect", model_file, "--slots", count, "--json"))["devices"][0]["needs"][0]["num_bytes"]
        for count in (1, 20)
    )
    assert many > few


def test_a_device_of_unknown_memory_is_said_to_be_one(
    rnn_engine: Command, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rnn_engine.loading.memory.find_memory", lambda _: None)
    shown = rnn_engine("inspect", model_file)
    assert "memory for a model: unknown; set --device-memory" in shown
    assert "fits" not in shown


def test_without_a_device_the_least_one_is_told(
    rnn_engine: Command, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rnn_engine.loading.memory.list_devices", list)
    (device,) = json.loads(rnn_engine("inspect", model_file, "--json"))["devices"]
    assert device["device"].startswith("any device")
    assert len(device["needs"]) == len(WEIGHT_FORMATS)


def test_the_demo_model_brings_its_tokenizer(rnn_engine: Command) -> None:
    assert json.loads(rnn_engine("inspect", model_path(), "--json"))["tokenizer"] != "none"


def test_a_tokenizer_that_does_not_fit_is_told(rnn_engine: Command, model_file: Path) -> None:
    assert "tokenizer: none that fits: the tokenizer" in rnn_engine("inspect", model_file, "--tokenizer", "world")
