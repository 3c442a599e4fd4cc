"""A real device is destroyed under an engine. The engine opens it again, and goes on with the states on the host."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from rnn_engine.engine import Engine
from rnn_engine.errors import StepError, UnavailableError
from rnn_engine.forward import GpuRunner
from rnn_engine.loading.parts import EngineParts, open_parts
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.requests import GenerateRequest, SamplingParams, Started
from rnn_engine.types import InitialState, Runner
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.cache.tiers.tier import SlotPool
from rnn_engine_states.frozen import freeze_state
from rnn_engine_states.named.entry import Retention
from tests.support.clients import Heard
from tests.support.fault_runner import Fault, FaultRunner, Faults
from tests.support.models import random_model, save_safetensors, tiny_shape

SHAPE = tiny_shape(vocab=50)
REQUEST = GenerateRequest([1, 2, 3, 4, 5], max_tokens=40, stop_tokens=(), sampling=SamplingParams(temperature=0))
LOSSES = 3


def destroy(runner: Runner) -> None:
    assert isinstance(runner, GpuRunner)
    runner.device.wgpu_device.destroy()


def parts_on(path: Path, faults: Faults) -> EngineParts:
    parts = open_parts(
        path,
        LoadSettings("0", "none", weights="f32"),
        name=None,
        num_slots=2,
        cache=CacheConfig(device_capacity=3 * SHAPE.state_bytes),
        states=StateSettings(),
        progress=lambda *_: None,
    )
    load = parts.load_runner
    assert load is not None
    assert parts.cache is not None
    parts.runner = FaultRunner(parts.runner, faults)
    parts.load_runner = lambda *given: FaultRunner(load(*given), faults)
    parts.cache.use_device(parts.runner, SlotPool(parts.runner, 2, parts.runner.num_slots - 2))
    return parts


async def listen(engine: Engine, request: GenerateRequest) -> Heard:
    return Heard([event async for event in engine.generate(request)])


def cached(heard: Heard) -> int:
    started = heard.events[0]
    assert isinstance(started, Started)
    return started.cached_tokens


async def test_a_device_that_is_destroyed_is_opened_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rnn_engine.scheduler.worker.RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(GpuRunner, "warm_up", lambda *_: None)  # it would compile kernels that the test does not use
    path = save_safetensors(random_model(SHAPE, seed=1), tmp_path / "tiny.safetensors")
    faults = Faults(on_lost=destroy)
    async with Engine(await asyncio.to_thread(parts_on, path, faults)) as engine:
        expected = await listen(engine, replace(REQUEST, keep_end=True))
        end = expected.finished.end
        assert end is not None
        name = await engine.states.put("kept", freeze_state(end.state, SHAPE, "end"), Retention(), source="end")
        named = replace(REQUEST, initial_state=InitialState(name.frozen.digest, name.frozen.state))
        from_name = await listen(engine, named)
        for number in range(6, 10):  # the first ones move to the host
            await listen(engine, replace(REQUEST, prompt=[number] * 5))
        for loss in range(LOSSES):
            faults.arm(Fault.LOST, after=1 + loss)
            with pytest.raises((StepError, UnavailableError)):
                await listen(engine, replace(REQUEST, prompt=[30 + loss] * 3))
            while engine.health().status != "ok":
                await asyncio.sleep(0)
            again = await listen(engine, REQUEST)
            assert [info.token for info in again.tokens] == [info.token for info in expected.tokens]
            assert cached(again) == len(REQUEST.prompt)
            assert [info.token for info in (await listen(engine, named)).tokens] == [
                info.token for info in from_name.tokens
            ]
    assert faults.struck[Fault.LOST] == LOSSES
