"""The predicted speed of decode on real GPUs."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from rnn_engine.forward.cost import GPUS
from tools.bench.predict import LoadedModel, main


@pytest.mark.parametrize("weights", ["f16", "int8", "nf4"])
def test_every_matrix_of_400_million_parameters_keeps_the_memory_busy(weights: str) -> None:
    model = LoadedModel("0.4B", weights)
    for gpu in GPUS:
        if gpu.name in ("Radeon RX 7900 XTX", "Radeon 780M"):
            assert all(share >= 0.8 for share in model.shares(gpu).values())


def test_a_token_takes_its_bytes_and_its_dispatches() -> None:
    model = LoadedModel("0.4B", "f16")
    assert len(model.plan.dispatches) == 24 * 5 + 6
    (gpu,) = (gpu for gpu in GPUS if gpu.name == "Radeon 780M")
    assert 0.7 < model.weight_bytes / gpu.memory / sum(model.seconds(gpu)) < 0.9


@pytest.mark.parametrize(("name", "count"), [("QRWKV6-7B", 7), ("ARWKV-7B", 5)])
def test_dispatches_of_models_in_the_body_of_a_qwen2(name: str, count: int) -> None:
    assert len(LoadedModel(name, "q4_k_m").plan.dispatches) == 28 * count + 6


def test_command() -> None:
    printed = CliRunner().invoke(main, ["--models", "0.4B", "--weights", "f16,int4"]).output
    assert printed.splitlines()[0] == "| GPU | 0.4B f16 | 0.4B int4 |"
    assert len(printed.splitlines()) == 2 + len(GPUS)
    printed = CliRunner().invoke(main, ["--models", "0.4B", "--weights", "f16", "--matrices"]).output
    assert printed.splitlines()[0] == "| 0.4B f16 | projections | output | key | value | head |"
    assert "no shape 3B" in CliRunner().invoke(main, ["--models", "3B"]).output
