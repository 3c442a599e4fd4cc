"""The device memory that a model takes, computed before it is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rnn_engine.bounds import AUTO_FORMATS
from rnn_engine.errors import DeviceError, DeviceMemoryError, InvalidRequestError
from rnn_engine.forward import GpuRunner
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS
from rnn_engine.gpu import SizingDevice
from rnn_engine.loading.memory import MemoryPlan, find_memory, inspect_model, measure_on, plan_memory, usual_weights
from rnn_engine.loading.runner import RunnerSize, load_runner, measure_runner, open_model
from rnn_engine.model import LoraChoice, ModelFile
from rnn_engine.model.model_file import UnreadModel
from rnn_engine.tensor_files.source import TensorInfo
from rnn_engine.types import DeviceMemory, ModelShape
from tests.support.gguf import save_gguf
from tests.support.loras import draw_pair, save_ai00
from tests.support.models import TensorModel, deep_embedded, random_model, save_safetensors, tiny_shape
from tests.support.older_models import OLDER_SHAPES, QWEN2_SHAPES

SHAPES = (
    tiny_shape(layers=2, width=72, head_size=24, ffn=100, vocab=77),
    *OLDER_SHAPES,
    *QWEN2_SHAPES,
    deep_embedded(tiny_shape()),
)


def unread(model: TensorModel) -> UnreadModel:
    infos = {name: TensorInfo(values.shape, values.dtype) for name, values in model.tensors.items()}
    return UnreadModel(model.shape, infos)


def allocated(model: TensorModel, size: RunnerSize, weights: str) -> DeviceMemory:
    runner = load_runner(
        model,
        size=RunnerSize(
            size.num_slots,
            spare_bytes=size.spare_bytes,
            max_tokens=size.max_tokens,
            max_rows=size.max_rows,
            max_loras=size.max_loras,
            max_lora_rank=size.max_lora_rank,
        ),
        weights=weights,
    )
    assert isinstance(runner, GpuRunner)
    try:
        return runner.memory
    finally:
        runner.close()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.version)
def test_the_estimate_is_what_is_allocated_for_every_version(shape: ModelShape) -> None:
    model = random_model(shape, seed=1)
    for weights, size in (
        ("f16", RunnerSize(num_slots=3)),
        ("int4,emb=int8,adapters=q8_0,layers=1", RunnerSize(num_slots=1, spare_bytes=100_000, max_tokens=5)),
        ("f16", RunnerSize(num_slots=3, max_loras=2, max_lora_rank=9)),
    ):
        estimate = measure_runner(unread(model), SizingDevice.like("auto"), size, weights=weights)
        assert estimate == allocated(model, size, weights)


@pytest.mark.parametrize("weights", [*WEIGHT_FORMATS, "stored", "int8,activations=int8"])
def test_the_estimate_is_what_is_allocated_in_every_format(weights: str) -> None:
    model = random_model(tiny_shape(layers=1, width=136, head_size=8, ffn=200, vocab=300), seed=1)
    size = RunnerSize(num_slots=2, max_rows=7)
    assert measure_runner(unread(model), SizingDevice.like("auto"), size, weights=weights) == allocated(
        model, size, weights
    )


def test_places_for_loras_that_fit_no_binding_are_refused() -> None:
    model = unread(random_model(tiny_shape(width=128), seed=1))
    size = RunnerSize(num_slots=1, max_tokens=8, max_loras=256, max_lora_rank=512)
    with pytest.raises(DeviceError, match="pairs of rank 131072 in all are too large for the device; expected a"):
        measure_runner(model, SizingDevice.smallest(), size, weights="f16")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelFile]:
    model = random_model(tiny_shape(layers=2, width=128, vocab=300), seed=1)
    with open_model(save_safetensors(model, tmp_path_factory.mktemp("model") / "small.safetensors")) as opened:
        yield opened


SIZE = RunnerSize(num_slots=8)


def needed(opened: ModelFile, weights: str, size: RunnerSize = SIZE) -> int:
    return measure_on(SizingDevice.like("auto"), opened)(weights, size)


@pytest.mark.parametrize("weights", AUTO_FORMATS)
def test_auto_takes_the_best_format_that_fits(opened: ModelFile, weights: str) -> None:
    plan = plan_memory(opened, "auto", SIZE, weights="auto", device_memory=needed(opened, weights))
    assert plan == MemoryPlan(weights, 0, "auto")


@pytest.fixture(scope="module")
def quantised_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = random_model(tiny_shape(layers=2, width=128, vocab=300), seed=1)
    return save_gguf(model, tmp_path_factory.mktemp("model") / "small.gguf", "Q4_0")


def test_a_quantised_file_is_kept_as_it_is_and_others_are_f16(opened: ModelFile, quantised_file: Path) -> None:
    assert plan_memory(opened, "auto", SIZE, weights=None).weights == "f16"
    with open_model(quantised_file) as quantised:
        assert plan_memory(quantised, "auto", SIZE, weights=None).weights == "stored"
        enough, little = needed(quantised, "stored"), needed(quantised, "int4")
        assert little < enough < needed(quantised, "int8")
        assert plan_memory(quantised, "auto", SIZE, weights="auto", device_memory=enough).weights == "stored"
        assert plan_memory(quantised, "auto", SIZE, weights="auto", device_memory=little).weights == "int4"
        with pytest.raises(DeviceMemoryError, match=r"it fits with --weights stored \(.* MB\) or --weights int4 \("):
            plan_memory(quantised, "auto", SIZE, weights="f16", device_memory=enough)


def test_a_lora_makes_plain_numbers_of_blocks(quantised_file: Path, tmp_path: Path) -> None:
    model = random_model(tiny_shape(layers=2, width=128, vocab=300), seed=1)
    pairs = {"blocks.0.att.key": draw_pair(model, "blocks.0.att.key.weight", rank=2)}
    with open_model(quantised_file, [LoraChoice(save_ai00(pairs, tmp_path / "lora.st"), 2.0)]) as merged:
        assert usual_weights(merged) == "f16"


def test_what_does_not_fit_is_refused_with_what_would(opened: ModelFile) -> None:
    most = needed(opened, "int8")
    with pytest.raises(DeviceMemoryError) as refused:
        plan_memory(opened, "auto", SIZE, weights="f16", device_memory=most)
    message = str(refused.value)
    missing = (needed(opened, "f16") - most) / 1e6
    assert "with weights f16 and 8 slots" in message
    assert f"{missing:.1f} MB more than the {most / 1e6:.1f} MB that" in message
    assert f"it fits with --weights int8 ({most / 1e6:.1f} MB) or --weights int4 (" in message


def test_fewer_slots_are_offered_where_they_fit(opened: ModelFile) -> None:
    three = needed(opened, "int4", replace(SIZE, num_slots=3))
    with pytest.raises(
        DeviceMemoryError, match=r"it fits with --slots 3 or --device 0:1,cpu:1 \(1.. MB on device 0 of .* MB\)$"
    ):
        plan_memory(opened, "auto", SIZE, weights="auto", device_memory=three)


def test_a_model_that_fits_in_no_way_is_refused(opened: ModelFile) -> None:
    with pytest.raises(DeviceMemoryError, match="expected a smaller model"):
        plan_memory(opened, "auto", SIZE, weights="int4", device_memory=1000)


def test_spare_slots_take_what_is_left(opened: ModelFile) -> None:
    one_spare = needed(opened, "f16", replace(SIZE, spare_bytes=opened.shape.state_bytes * 2))
    size = replace(SIZE, spare_bytes=1 << 30)
    plan = plan_memory(opened, "auto", size, weights="f16", device_memory=one_spare)
    assert needed(opened, "f16") < needed(opened, "f16", replace(SIZE, spare_bytes=plan.spare_bytes)) <= one_spare


def test_a_device_of_unknown_memory_needs_a_word_for_auto(opened: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine.loading.memory.find_memory", lambda _: None)
    with pytest.raises(InvalidRequestError, match="--weights auto needs --device-memory, since the memory of"):
        plan_memory(opened, "auto", SIZE, weights="auto")
    assert plan_memory(opened, "auto", SIZE, weights="f16") == MemoryPlan("f16", 0, "auto")


def test_the_memory_of_a_software_device_is_the_computers() -> None:
    info = SizingDevice.smallest().info
    assert find_memory(replace(info, kind="discrete")) is None
    for kind in ("software", "integrated"):
        assert (find_memory(replace(info, kind=kind)) or 0) > 1 << 20


@pytest.mark.parametrize("weights", [None, "auto", "f32", "stored"])
def test_on_the_cpu_weights_are_f32(opened: ModelFile, weights: str | None) -> None:
    assert plan_memory(opened, "cpu", SIZE, weights=weights) == MemoryPlan("f32", 0, "cpu")


@pytest.mark.parametrize(
    ("weights", "planned"),
    [
        ("int8", "int8,activations=int8"),
        ("q4_0,head=q8_0", "q4_0,head=q8_0,activations=int8"),
        ("q8_0,activations=f32", "q8_0,activations=f32"),
    ],
)
def test_on_the_cpu_blocks_are_multiplied_in_bytes_unless_the_user_says_otherwise(
    opened: ModelFile, weights: str, planned: str
) -> None:
    assert plan_memory(opened, "cpu", SIZE, weights=weights) == MemoryPlan(planned, 0, "cpu")


def test_on_the_cpu_a_quantised_file_keeps_its_blocks(tmp_path: Path) -> None:
    with open_model(save_gguf(random_model(tiny_shape(), seed=1), tmp_path / "model.gguf", "Q8_0")) as quantised:
        assert plan_memory(quantised, "cpu", SIZE, weights=None).weights == "stored,activations=int8"
        assert plan_memory(quantised, "cpu", SIZE, weights="f32").weights == "f32"


@pytest.mark.parametrize("weights", ["f16", "bf16,head=int8"])
def test_the_cpu_refuses_weights_that_it_does_not_have(opened: ModelFile, weights: str) -> None:
    words = f"the device cpu has no weights '{weights}'; expected auto, f32, stored or a format of 8 or 4 bits"
    with pytest.raises(InvalidRequestError, match=words):
        plan_memory(opened, "cpu", SIZE, weights=weights)


def test_what_other_models_have_is_taken_off(opened: ModelFile) -> None:
    most = needed(opened, "f16")
    other = load_runner(random_model(tiny_shape(), seed=1), size=RunnerSize(1))
    assert isinstance(other, GpuRunner)
    try:
        with pytest.raises(DeviceMemoryError):
            plan_memory(opened, "auto", SIZE, weights="f16", device_memory=most)
        plan_memory(opened, "auto", SIZE, weights="f16", device_memory=most + other.memory.total)
        for device_memory, fits in ((most, False), (most + other.memory.total, True)):
            inspected = inspect_model(opened, num_slots=SIZE.num_slots, device_memory=device_memory)
            found = min(inspected.devices, key=lambda device: device.available_bytes or 0)  # `other` is on one device
            assert found.available_bytes == device_memory - other.memory.total
            assert next(need for need in found.needs if need.weights == "f16").fits is fits
    finally:
        other.close()
