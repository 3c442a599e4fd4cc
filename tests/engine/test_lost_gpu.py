"""A GPU that is lost, full or hung: the process lives, requests get errors, and states are kept.

A Vulkan layer over the software driver makes the faults. Each scenario runs in a process of its own, since a fault that
is not contained ends it, and prints what came of the faults.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pytest

from rnn_engine.backward import TrainingDocument
from rnn_engine.engine import Engine
from rnn_engine.errors import DeviceError, RnnEngineError, StepError
from rnn_engine.forward import GpuRunner
from rnn_engine.gpu import BufferCopy, Recorder, open_device
from rnn_engine.loading.parts import EngineParts, open_parts
from rnn_engine.loading.runner import RunnerSize, load_runner, open_model
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.loading.trainer import TrainerSize, load_trainer
from rnn_engine.requests import GenerateRequest, SamplingParams, Started
from rnn_engine.scheduler import worker
from rnn_engine.types import InitialState
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.frozen import freeze_state
from rnn_engine_states.named.entry import Retention
from tests.support.clients import Heard
from tests.support.fault_layer import Call, FaultLayer, build_layer
from tests.support.models import random_model, save_safetensors, tiny_shape

SHAPE: Final = tiny_shape(vocab=50)
KEPT: Final = GenerateRequest([1, 2, 3, 4, 5], max_tokens=12, stop_tokens=(), sampling=SamplingParams(temperature=0))
LOSSES: Final = {
    "wait": {Call.WAIT: 2},
    "status": {Call.STATUS: 2},
    "submit in a prefill": {Call.SUBMIT: 1},
    "twice in a row": {Call.SUBMIT: 0, Call.WAIT: 6},  # the second one while the model is loaded again
}
NUM_FAULTS: Final = int(os.environ.get("RNN_ENGINE_GPU_FAULTS", "3"))  # of some scenarios; more by hand
SECONDS: Final = 60.0  # until a scenario that waits in vain fails

OUTCOMES: Final = {"StepError", "UnavailableError", "12 tokens"}
LARGE_BYTES: Final = 40 << 20

Facts = Mapping[str, Any]


async def listen(engine: Engine, request: GenerateRequest) -> Heard:
    return Heard([event async for event in engine.generate(request)])


async def reach(engine: Engine, status: str) -> None:
    while engine.health().status != status:
        await asyncio.sleep(0.001)


async def ask(engine: Engine, request: GenerateRequest) -> str:
    try:
        return f"{len((await listen(engine, request)).tokens)} tokens"
    except RnnEngineError as error:
        return type(error).__name__


async def settle(engine: Engine) -> None:
    """Have a loss noticed that no request has met yet, and wait until the device is open again."""
    await ask(engine, KEPT)
    await reach(engine, "ok")


async def ask_kept(engine: Engine, request: GenerateRequest = KEPT) -> list[int]:
    """Return the tokens of the answer to a known prompt, after the number of its tokens that were cached."""
    heard = await listen(engine, request)
    started = heard.events[0]
    assert isinstance(started, Started)
    return [started.cached_tokens, *(info.token for info in heard.tokens)]


def parts_on(path: Path) -> EngineParts:
    return open_parts(
        path,
        LoadSettings("0", "none", weights="f32"),
        name=None,
        num_slots=2,
        cache=CacheConfig(device_capacity=0),
        states=StateSettings(),
        progress=lambda *_: None,
    )


async def lose_while_serving(layer: FaultLayer, path: Path) -> Facts:
    """Lose the device in each of the ways of `LOSSES`, under three requests, and then hang it."""
    async with asyncio.timeout(SECONDS), Engine(parts_on(path)) as engine:
        heard = await listen(engine, replace(KEPT, keep_end=True))
        end = heard.finished.end
        assert end is not None
        put = await engine.states.put("kept", freeze_state(end.state, SHAPE, "end"), Retention(), source="end")
        named = replace(KEPT, initial_state=InitialState(put.frozen.digest, put.frozen.state))
        await listen(engine, named)
        expected = await ask_kept(engine), await ask_kept(engine, named)
        facts: dict[str, Any] = {}
        for name, faults in LOSSES.items():
            reopened, struck = engine.counters().device_reopens, layer.struck
            for call, after in faults.items():
                layer.arm(call, after)
            prompts = [[number] * (150 if name == "submit in a prefill" else 3) for number in (10, 11, 12)]
            outcomes = await asyncio.gather(*(ask(engine, replace(KEPT, prompt=prompt)) for prompt in prompts))
            while layer.struck < struck + len(faults):
                await settle(engine)
            await settle(engine)
            facts[name] = {
                "outcomes": outcomes,
                "struck": layer.struck - struck,
                "reopened": engine.counters().device_reopens - reopened,
                "as before": (await ask_kept(engine), await ask_kept(engine, named)) == expected,
            }
        layer.hang(True)
        worker.STEP_SECONDS = worker.LOOK_SECONDS = 0.02
        hung = asyncio.gather(*(ask(engine, replace(KEPT, prompt=[20 + number])) for number in range(3)))
        await reach(engine, "stalled")
        facts["hang"] = {"outcomes": await hung, "refused": await ask(engine, KEPT)}
        worker.STEP_SECONDS = SECONDS
        layer.hang(False)
        await reach(engine, "ok")
        facts["hang"]["as before"] = (await ask_kept(engine), await ask_kept(engine, named)) == expected
    return facts


async def lose_at_random(layer: FaultLayer, path: Path) -> Facts:
    """Lose the device at random calls, also while it is opened again or has no room."""
    chance, outcomes, sent, wrong = random.Random(5), Counter[str](), 0, 0
    async with asyncio.timeout(SECONDS * max(1, NUM_FAULTS / 10)), Engine(parts_on(path)) as engine:
        expected = (await ask_kept(engine))[1:]
        for fault in range(NUM_FAULTS):
            while layer.struck <= fault:
                for call in Call:
                    layer.disarm(call)
                layer.arm(chance.choice(list(Call)), chance.randrange(40))
                prompts = [[chance.randrange(1, 50) for _ in range(chance.randrange(1, 100))] for _ in range(4)]
                outcomes.update(
                    await asyncio.gather(*(ask(engine, replace(KEPT, prompt=prompt)) for prompt in prompts))
                )
                sent += len(prompts)
            await settle(engine)
            wrong += (await ask_kept(engine))[1:] != expected
        reopened = engine.counters().device_reopens
    return {"outcomes": outcomes, "sent": sent, "wrong": wrong, "struck": layer.struck, "reopened": reopened}


async def fail_while_loading(layer: FaultLayer, path: Path) -> Facts:
    """Load a model beside a served one on the same device: without room for one of its buffers, and on a lost device.

    The driver's memory for a buffer that an upload needs is wgpu's own: without it, wgpu gives up the device.
    """

    def load_with(call: Call, after: int) -> str:
        layer.arm(call, after)
        try:
            with open_model(path) as model:
                load_runner(model, "0", RunnerSize(1), weights="f32", warm_up=True).close()
        except DeviceError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            layer.disarm(call)
        return "loaded"

    facts: dict[str, Any] = {"messages": [], "served": []}
    async with asyncio.timeout(SECONDS * max(1, NUM_FAULTS / 10)), Engine(parts_on(path)) as engine:
        await listen(engine, KEPT)
        expected = await ask_kept(engine)
        before = layer.count(Call.CREATE_BUFFER)
        facts["without a fault"] = await asyncio.to_thread(load_with, Call.CREATE_BUFFER, 1 << 20)
        count = layer.count(Call.CREATE_BUFFER) - before
        faults = [(Call.CREATE_BUFFER, after) for after in range(0, count, max(1, count // NUM_FAULTS))]
        for call, after in [*faults, (Call.SUBMIT, 1), (Call.WAIT, 1)]:
            facts["messages"].append(await asyncio.to_thread(load_with, call, after))
            await settle(engine)
            facts["served"].append(await ask_kept(engine) == expected)
        facts["reopened"] = engine.counters().device_reopens
    return facts


async def lose_while_training(layer: FaultLayer, path: Path) -> Facts:
    documents = [TrainingDocument(np.arange(1, 9, dtype=np.int32), np.arange(8, dtype=np.float32))]
    facts: dict[str, Any] = {"errors": [], "losses": []}
    for faults in ({}, {Call.SUBMIT: 1}, {Call.WAIT: 0}, {}):
        with open_model(path) as model:
            trainer = load_trainer(model, "0", TrainerSize(max_tokens=16, max_documents=1), weights="f32")
        with closing(trainer):
            for call, after in faults.items():
                layer.arm(call, after)
            try:
                loss = trainer.accumulate(documents, 1.0)
                facts["losses"].append([loss, trainer.update(0.1), trainer.loss(documents)])
            except StepError as error:
                facts["errors"].append(str(error))
    return {**facts, "bytes": lose_much_memory(layer)}


def lose_much_memory(layer: FaultLayer) -> list[int]:
    """Lose the device while it uses large buffers, and free them.

    Return the bytes that they added, those that are left of them, and 1 for a lost device.
    """
    device = open_device()
    memory, recorder, before = device.allocate(), Recorder(device), layer.allocated
    source, target = (memory.create_buffer("large", LARGE_BYTES) for _ in range(2))
    recorder.submit(copies=[BufferCopy(source, 0, target, 0, 64)])
    layer.arm(Call.WAIT)
    with suppress(DeviceError):
        recorder.wait(recorder.submit(copies=[BufferCopy(source, 0, target, 0, 64)]))
    added = layer.allocated - before
    memory.close()
    return [added, layer.allocated - before, int(device.is_lost)]


Scenario = Callable[[FaultLayer, Path], Awaitable[Facts]]
Run = Callable[[Scenario], Facts]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("layer")
    environment = build_layer(folder)
    path = save_safetensors(random_model(SHAPE, seed=1), folder / "tiny.safetensors")

    def run(scenario: Scenario) -> Facts:
        command = [sys.executable, "-m", __name__, scenario.__name__, str(path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        facts: Facts = json.loads(done.stdout)
        return facts

    return run


def test_a_server_whose_gpu_is_lost_or_hangs_goes_on(run: Run) -> None:
    facts = run(lose_while_serving)
    for name, faults in LOSSES.items():
        lost = facts[name]
        assert (lost["struck"], lost["reopened"] > 0, lost["as before"]) == (len(faults), True, True), name
        assert "StepError" in lost["outcomes"], name
        assert set(lost["outcomes"]) <= OUTCOMES, name
    hang = {"outcomes": ["UnavailableError"] * 3, "refused": "UnavailableError", "as before": True}
    assert facts["hang"] == hang


def test_a_gpu_that_fails_at_random_calls(run: Run) -> None:
    facts = run(lose_at_random)
    assert facts["struck"] >= NUM_FAULTS
    assert facts["reopened"] > 0
    assert facts["wrong"] == 0
    assert set(facts["outcomes"]) <= OUTCOMES
    assert sum(facts["outcomes"].values()) == facts["sent"]


def test_a_load_that_fails_is_an_error_and_the_other_model_stays(run: Run) -> None:
    facts = run(fail_while_loading)
    assert facts["without a fault"] == "loaded"
    *full, lost_at_submit, lost_at_wait = facts["messages"]
    kinds = {message.partition(":")[0] for message in full}
    assert {"DeviceMemoryError"} <= kinds <= {"DeviceMemoryError", "DeviceError"}
    assert lost_at_submit.startswith("DeviceError: ")
    assert lost_at_wait.startswith("DeviceError: ")
    assert not any("\n" in message for message in facts["messages"])
    assert all(facts["served"])


def test_a_gpu_that_is_lost_while_a_state_is_trained_and_its_memory(run: Run) -> None:
    facts = run(lose_while_training)
    added, left, is_lost = facts["bytes"]
    assert added >= 2 * LARGE_BYTES
    assert left <= 0
    assert is_lost
    assert len(facts["errors"]) == 2
    first, last = facts["losses"]
    assert first == last


async def main() -> None:
    worker.RETRY_SECONDS = (0.0,) * 8
    scenario: Scenario = globals()[sys.argv[1]]
    warms_up = scenario is fail_while_loading  # the others do not use most of what is compiled then
    with nullcontext() if warms_up else patch.object(GpuRunner, "warm_up"):
        json.dump(await scenario(FaultLayer(), Path(sys.argv[2])), sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
