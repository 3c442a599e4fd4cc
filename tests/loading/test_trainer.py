"""Loading trainers of initial states: the device, what is refused, and the memory that is computed beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from rnn_engine.backward import Trainer
from rnn_engine.backward.cpu_trainer import CpuTrainer
from rnn_engine.backward.gpu_trainer import GpuTrainer
from rnn_engine.errors import DeviceError, DeviceMemoryError, InvalidRequestError, ModelError
from rnn_engine.gpu import SizingDevice, list_devices
from rnn_engine.loading.runner import open_model
from rnn_engine.loading.settings import LoraSettings
from rnn_engine.loading.trainer import TrainerSize, load_trainer, measure_trainer, plan_trainer
from rnn_engine.model import ModelFile
from rnn_engine.model.model_file import UnreadModel
from rnn_engine.tensor_files.source import TensorInfo
from rnn_engine.types import ModelShape
from rnn_engine.versions.table import VERSIONS
from rnn_engine.versions.v7.layout import ShapeV7
from tests.support.models import deep_embedded, random_model, save_safetensors, tiny_shape
from tests.support.older_models import OLDER_SHAPES, QWEN2_SHAPES, tiny_v4, tiny_v5
from tools.bench.peers import SHAPES as PUBLISHED

SHAPES = [
    shape
    for shape in (tiny_shape(layers=2, width=72, head_size=24, ffn=100, vocab=77), *OLDER_SHAPES)
    if VERSIONS.get(shape.version).load_backward is not None
]
SIZE = TrainerSize(max_tokens=256, max_documents=8)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelFile]:
    with open_model(save_safetensors(random_model(SHAPES[0], seed=1), tmp_path_factory.mktemp("m") / "m.st")) as opened:
        yield opened


def needed(opened: ModelFile, weights: str, size: TrainerSize) -> int:
    like = SizingDevice.like("auto")
    return measure_trainer(UnreadModel(opened.shape, opened.tensors), like, size, weights=weights).total


def test_training_takes_one_device(opened: ModelFile) -> None:
    with pytest.raises(InvalidRequestError, match="device: '0,cpu' is not allowed; expected a single device"):
        load_trainer(opened, "0,cpu", SIZE)


def test_the_name_of_a_device_may_have_a_comma(opened: ModelFile) -> None:
    with pytest.raises(DeviceError, match="no device") as caught:
        load_trainer(opened, "a device (of no maker, 64 bits)", SIZE)
    assert not isinstance(caught.value, DeviceMemoryError)
    [first, *_] = list_devices()
    with closing(load_trainer(opened, first.name, SIZE)) as trainer:
        assert isinstance(trainer, GpuTrainer)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.version)
@pytest.mark.parametrize(
    ("weights", "lora"),
    [
        ("f16", None),
        ("int4,emb=int8,adapters=q8_0,layers=1", LoraSettings(rank=3)),
        ("f16", LoraSettings(rank=3, init="pissa", train_state=True)),
        ("int8", LoraSettings(rank=3, train_vectors=True)),
    ],
)
def test_the_estimate_is_what_is_allocated(
    shape: ModelShape, weights: str, lora: LoraSettings | None, tmp_path: Path
) -> None:
    if lora is not None and lora.train_vectors and shape.version.startswith("v5"):
        lora = replace(lora, train_vectors=False)
    size = TrainerSize(max_tokens=40, max_documents=3, lora=lora)
    with open_model(save_safetensors(random_model(shape, seed=1), tmp_path / "m.st")) as opened:
        unread = UnreadModel(shape, opened.tensors)
        estimate = measure_trainer(unread, SizingDevice.like("auto"), size, weights=weights)
        trainer = load_trainer(opened, "0", size, weights=weights)
    assert isinstance(trainer, GpuTrainer)
    with closing(trainer):
        assert trainer.memory == estimate
        assert (trainer.max_tokens, trainer.max_documents) == (40, 3)


def test_a_model_of_1_5b_at_int8_takes_less_than_4_gb_for_1024_tokens_a_call() -> None:
    shape = PUBLISHED["1.5B"]
    assert isinstance(shape, ShapeV7)
    ranks = {f"R_{name}": rank for name, rank in asdict(shape.ranks).items()}
    sizes = {"D": shape.width, "V": 65536, "F": shape.ffn_width, "H": shape.num_heads, "N": shape.head_size, **ranks}
    tensors = {
        spec.name: TensorInfo(tuple(sizes[letter] for letter in spec.dims), np.dtype(ml_dtypes.bfloat16))
        for spec in VERSIONS.get(shape.version).layout.specs(shape.num_layers)
    }
    found = measure_trainer(UnreadModel(shape, tensors), SizingDevice.smallest(), TrainerSize(1024), weights="int8")
    assert 1.5e9 < found.weights < found.total < 4e9


def test_what_does_not_fit_is_refused_with_what_would(opened: ModelFile) -> None:
    """All is computed from the file's header: the message says which formats, tokens and documents would fit."""
    enough = needed(opened, "int8", SIZE)
    assert plan_trainer(opened, "auto", SIZE, weights="int8", device_memory=enough) == "int8"
    assert plan_trainer(opened, "auto", SIZE, weights="auto", device_memory=enough) == "int8"
    assert plan_trainer(opened, "auto", SIZE, weights=None, device_memory=needed(opened, "f16", SIZE)) == "f16"
    with pytest.raises(
        DeviceMemoryError, match=r"with weights f16, 256 tokens and 8 documents .* it fits with weights int8"
    ):
        load_trainer(opened, "0", SIZE, weights="f16", device_memory=enough)
    half = needed(opened, "int4", TrainerSize(128, 8))
    with pytest.raises(DeviceMemoryError, match="it fits with max_tokens 128"):
        plan_trainer(opened, "auto", SIZE, weights="int4", device_memory=half)
    with pytest.raises(DeviceMemoryError, match="expected a smaller model"):
        plan_trainer(opened, "auto", SIZE, weights="int4", device_memory=1000)


def test_numpy_trains_on_the_cpu(opened: ModelFile) -> None:
    trainer: Trainer = load_trainer(opened, "cpu", TrainerSize(max_tokens=40))
    assert isinstance(trainer, CpuTrainer)
    assert trainer.max_tokens == 40
    with pytest.raises(InvalidRequestError, match="the device cpu has no weights 'int8'"):
        load_trainer(opened, "cpu", weights="int8")


@pytest.mark.parametrize(
    "shape", [tiny_v4(), deep_embedded(tiny_shape()), *QWEN2_SHAPES], ids=lambda shape: shape.version
)
@pytest.mark.parametrize("device", ["cpu", "auto", "0"])
def test_versions_that_can_not_be_trained_are_refused(shape: ModelShape, device: str, tmp_path: Path) -> None:
    with (
        open_model(save_safetensors(random_model(shape, seed=1), tmp_path / "m.st")) as opened,
        pytest.raises(ModelError, match=r"initial states of .* can't be trained; expected RWKV-5, 6 or 7"),
    ):
        load_trainer(opened, device)


@pytest.mark.parametrize("device", ["cpu", "0"])
def test_vectors_of_rwkv_5_are_refused(device: str, tmp_path: Path) -> None:
    with (
        open_model(save_safetensors(random_model(tiny_v5(), seed=1), tmp_path / "m.st")) as opened,
        pytest.raises(
            InvalidRequestError, match="train_vectors: True is not allowed; expected false; only vectors of RWKV-6"
        ),
    ):
        load_trainer(opened, device, TrainerSize(lora=LoraSettings(train_vectors=True)))


def test_settings_that_mean_nothing_are_refused(opened: ModelFile) -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens: 0"):
        TrainerSize(max_tokens=0)
    with pytest.raises(InvalidRequestError, match="max_documents: 0"):
        TrainerSize(max_documents=0)
    with pytest.raises(InvalidRequestError, match="activations=int8; expected f32"):
        load_trainer(opened, "0", weights="int8,activations=int8")
