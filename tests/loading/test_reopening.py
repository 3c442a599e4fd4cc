"""Opening a device again: the same model, the cache's states elsewhere, and files that are missing or changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.errors import ModelError
from rnn_engine.forward import GpuRunner
from rnn_engine.loading.parts import EngineParts, open_parts
from rnn_engine.loading.runner import spare_slot_bytes
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.scheduler import DraftSettings
from rnn_engine.types import F32, Runner, TokenRun, run_step
from rnn_engine_states.cache.checkpoint import CheckpointKind
from rnn_engine_states.cache.config import CacheConfig
from tests.support.models import random_model, reranker_shape, save_safetensors, tiny_shape
from tests.support.retrieval import EMBEDDING, RERANKER, golden

SHAPE = tiny_shape(vocab=50)
TOKENS = [1, 2, 3]


@pytest.fixture(autouse=True)
def _no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the warm-up out, which would compile kernels that the tests do not use."""
    monkeypatch.setattr(GpuRunner, "warm_up", lambda *_: None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save_safetensors(random_model(SHAPE, seed=1), tmp_path / "tiny.safetensors")


@contextmanager
def parts_of(
    path: Path, device: str, cache: CacheConfig | None = None, reranker: Path | None = None
) -> Iterator[EngineParts]:
    parts = open_parts(
        path,
        LoadSettings(device, "none", weights="f32", reranker=reranker),
        name=None,
        num_slots=2,
        cache=cache,
        states=StateSettings(),
        progress=lambda *_: None,
    )
    try:
        yield parts
    finally:
        parts.close()


def run(runner: Runner) -> F32:
    runner.write_state(0, None)
    return run_step(runner, [TokenRun(0, TOKENS, rows=1)]).logits


def nothing() -> None:
    """Do nothing, so that the load goes on."""


def test_a_reranker_is_opened_again_with_its_model(tmp_path: Path) -> None:
    reranker = Path(shutil.copy(RERANKER, tmp_path / "reranker.pth"))
    with parts_of(EMBEDDING, "0", reranker=reranker) as parts:
        assert isinstance(parts.runner, GpuRunner)
        assert parts.reranker is not None
        state = {**parts.runner.shape.initial_state(), "wkv": golden("wkv.1")}
        assert parts.reranker.score([state] * 5) == pytest.approx([golden("score.1")[0]] * 5, abs=1e-5)
        parts.runner.device.wgpu_device.destroy()
        parts.reopen(nothing)
        assert parts.reranker.score([state]) == pytest.approx(golden("score.1"), abs=1e-5)
        other = random_model(reranker_shape(tiny_shape()), 1)
        os.replace(save_safetensors(other, tmp_path / "other.safetensors"), reranker)
        with pytest.raises(ModelError, match=r"reranker\.pth: the weights have changed since they were loaded"):
            parts.reopen(nothing)


def test_a_device_that_was_destroyed_is_opened_again_with_what_the_host_keeps(path: Path) -> None:
    state_bytes = SHAPE.state_bytes
    with parts_of(path, "0", CacheConfig(device_capacity=3 * state_bytes)) as parts:
        first = parts.runner
        assert isinstance(first, GpuRunner)
        assert first.num_slots == 4
        expected = run(first)
        cache = parts.cache
        assert cache is not None
        for last in range(4):  # the first two move to the host
            cache.insert("none", [*TOKENS, last], 0, kind=CheckpointKind.MARK)
        first.read_state(0)  # after this read, the earlier ones have arrived
        cache.peek("none", TOKENS)
        first.device.wgpu_device.destroy()
        second = parts.reopen(nothing)
        assert isinstance(second, GpuRunner)
        assert second is parts.runner
        assert second.device is not first.device
        assert second.num_slots == 4
        assert np.array_equal(run(second), expected)
        assert [cache.peek("none", [*TOKENS, last, 9]) for last in range(4)] == [4, 4, 0, 0]
        match = cache.look_up("none", [*TOKENS, 0, 9])
        cache.restore(match, 1)
        assert np.array_equal(second.read_state(1)["wkv"], second.read_state(0)["wkv"])
        assert {tier.tier: tier.copies for tier in cache.stats().tiers} == {"device": 1, "host": 2}


def test_a_device_that_answers_is_opened_again_too(path: Path) -> None:
    with parts_of(path, "0") as parts:
        first = parts.runner
        assert isinstance(first, GpuRunner)
        second = parts.reopen(nothing)
        assert isinstance(second, GpuRunner)
        assert second.device is not first.device


@pytest.mark.parametrize("change", ["gone", "another", "damaged"])
def test_a_model_file_that_is_not_the_same_is_refused(path: Path, change: str) -> None:
    with parts_of(path, "cpu") as parts:
        expected = run(parts.runner)
        original = path.read_bytes()
        match change:
            case "gone":
                path.unlink()
            case "another":
                save_safetensors(random_model(SHAPE, seed=2), path)
            case "damaged":
                path.write_bytes(original[:-100])
        with pytest.raises(ModelError, match=r"tiny\.safetensors"):
            parts.reopen(nothing)
        path.write_bytes(original)
        assert np.array_equal(run(parts.reopen(nothing)), expected)


def test_a_load_can_be_given_up(path: Path) -> None:
    def give_up() -> None:
        raise InterruptedError

    with parts_of(path, "0") as parts:
        with pytest.raises(InterruptedError):
            parts.reopen(give_up)
        assert parts.reopen(nothing) is parts.runner


@pytest.mark.parametrize("num_cached", [0, 3])
def test_drafts_have_spare_slots_of_their_own(path: Path, num_cached: int) -> None:
    cache = CacheConfig(device_capacity=num_cached * spare_slot_bytes(SHAPE))
    parts = open_parts(
        path,
        LoadSettings("cpu", "none", speculate=5),
        name=None,
        num_slots=2,
        cache=cache,
        states=StateSettings(),
        progress=lambda *_: None,
    )
    try:
        assert parts.drafts == DraftSettings(5, range(2, 4))
        assert parts.info.max_draft == 5
        assert parts.cache is not None
        slabs = next((tier for tier in parts.cache.stats().tiers if tier.tier == "device"), None)
        assert (0 if slabs is None else slabs.capacity // SHAPE.state_bytes) == parts.runner.num_slots - 4
        parts.reopen(nothing)
        assert parts.drafts.spare_slots == range(2, 4)
    finally:
        parts.close()
