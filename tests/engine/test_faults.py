"""Faults inside an engine: the requests that end with an error, and those that go on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rnn_engine.errors import EngineClosedError, StepError
from rnn_engine.interface import EngineStats
from rnn_engine.loading.runner import RunnerSize, load_runner
from rnn_engine.scheduler import Scheduler, Worker
from rnn_engine.types import InitialState
from rnn_engine_states.cache.cache import make_cache
from tests.support.clients import Heard
from tests.support.engines import HELLO, PATIENCE, TOKENIZER, ask, engine_of, listen, reach, running
from tests.support.fake_runner import FakeRunner
from tests.support.gate import Gate
from tests.support.models import random_model, tiny_shape


def broken(*_args: object) -> None:
    raise RuntimeError("a fault of our own")


async def test_a_failed_step_is_told_to_its_clients_and_the_engine_goes_on() -> None:
    runner = FakeRunner(HELLO, fail_when=lambda batch: len(batch) > 1)
    async with running(runner) as engine:
        results = await asyncio.gather(*(listen(engine, ask()) for _ in range(4)), return_exceptions=True)
        failures = [result for result in results if isinstance(result, StepError)]
        assert len(failures) >= 2
        assert {str(failure) for failure in failures} == {"told to fail"}
        assert (await listen(engine, ask())).text == "Hello"


async def test_the_worker_survives_a_scheduler_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(FakeRunner(HELLO)) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "step", broken)
            with pytest.raises(StepError, match="the scheduler failed"):
                await listen(engine, ask())
        assert (await listen(engine, ask())).text == "Hello"


async def test_the_engine_goes_on_after_a_wait_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_with_work(scheduler: Scheduler) -> bool:
        if scheduler.has_work:
            raise RuntimeError("a fault of our own")
        return False

    async with running(FakeRunner(HELLO)) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "is_due", broken_with_work)
            for _ in range(3):
                with pytest.raises(StepError):
                    await listen(engine, ask())
        assert (await listen(engine, ask())).text == "Hello"
        assert engine.stats() == EngineStats(active=0, queued=0)


async def test_a_worker_that_can_not_go_on_ends_every_request_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    runner = FakeRunner(HELLO, num_slots=1, on_step=gate)
    async with running(runner) as engine:
        requests = [asyncio.create_task(listen(engine, ask())) for _ in range(3)]
        await reach(lambda: len(runner.batches) == 1)
        question = asyncio.create_task(engine.drop_cache())
        monkeypatch.setattr(Scheduler, "step", broken)
        monkeypatch.setattr(Scheduler, "abort", broken)
        gate.open()
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(result) for result in results] == [EngineClosedError] * 3
        await question
        assert engine.health().status == "failed"
        assert runner.closed
        with pytest.raises(EngineClosedError):
            await listen(engine, ask())
    assert not engine.stats().active


async def test_a_question_to_a_worker_that_ends_is_answered_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    runner = FakeRunner(HELLO, on_step=gate)
    cache = make_cache(runner.shape, "a model", runner)
    async with asyncio.timeout(PATIENCE), engine_of(runner, cache=cache) as engine:
        request = asyncio.create_task(listen(engine, ask()))
        await reach(lambda: len(runner.batches) == 1)
        question = asyncio.create_task(engine.drop_cache())
        await asyncio.sleep(0)
        monkeypatch.setattr(Worker, "_obey", broken)
        monkeypatch.setattr(Scheduler, "abort", broken)
        gate.open()
        results = await asyncio.gather(request, question, return_exceptions=True)
        assert [type(result) for result in results] == [EngineClosedError] * 2


async def test_a_request_that_can_not_be_queued_ends_with_an_error_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    runner = FakeRunner(HELLO, on_step=gate)
    async with running(runner) as engine:
        healthy = asyncio.create_task(listen(engine, ask()))
        await reach(lambda: len(runner.batches) == 1)
        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "submit", broken)
            refused = asyncio.create_task(listen(engine, ask()))
            await asyncio.sleep(0)
            gate.open()
            with pytest.raises(StepError, match="a fault of our own"):
                await refused
        assert (await healthy).text == "Hello"


async def test_a_state_that_overflows_ends_its_own_requests_alone() -> None:
    """The state's wkv is finite, and so accepted, but the model's results from it are not finite."""
    model = random_model(tiny_shape(vocab=TOKENIZER.size), seed=1)
    runner = load_runner(model, "cpu", RunnerSize(4, max_tokens=256))
    cache = make_cache(model.shape, "a model", runner)
    huge = model.shape.initial_state()
    huge["wkv"][:] = 3e38
    bad = replace(ask("Hi" * 50, max_tokens=4), initial_state=InitialState("huge", huge), stop_tokens=[], keep_end=True)
    good = [replace(ask(text * 30, max_tokens=8), stop_tokens=[]) for text in "abc"]
    async with asyncio.timeout(PATIENCE), engine_of(runner, cache=cache) as engine:
        alone = [await listen(engine, request) for request in good]
        await engine.drop_cache()
        results = await asyncio.gather(*(listen(engine, one) for one in [bad, *good, bad]), return_exceptions=True)
        assert [isinstance(result, StepError) for result in results] == [True, False, False, False, True]
        for heard, expected in zip(results[1:4], alone, strict=True):
            assert isinstance(heard, Heard)
            assert [info.token for info in heard.tokens] == [info.token for info in expected.tokens]
        assert {checkpoint.root for checkpoint in cache.checkpoints()} == {"none"}
