"""Requests on a device that fails in every way: each ends once and rightly, and only what must be lost is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rnn_engine.requests import GenerateRequest, SamplingParams
from rnn_engine.scheduler import Scheduler, Worker
from rnn_engine.types import Runner
from tests.support.fake_runner import FakeRunner, table_logits
from tests.support.fault_model import NUM_SLOTS, SPARE_SLOTS, FaultModel, run_random_faults
from tests.support.fault_runner import Fault
from tests.support.models import tiny_shape
from tests.support.scheduler_model import TOKEN_BYTES, VOCAB_SIZE


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine.scheduler.worker.RETRY_SECONDS", (0.0,) * 50)


@pytest.mark.parametrize(("has_disk", "seed"), [(False, 0), (True, 1), (True, 2)])
def test_a_long_run_loses_nothing_but_what_was_on_the_device(has_disk: bool, seed: int, tmp_path: Path) -> None:
    model = FaultModel(tmp_path if has_disk else None)
    run_random_faults(model, seed, operations=400, check_every=5)
    assert model.answers > 20
    assert model.recoveries > 0
    struck = {fault for fault, times in model.faults.struck.items() if times > 0}
    assert len(struck) > len(Fault) // 2


def serve(model: FaultModel, *requests: GenerateRequest) -> None:
    """Send requests one after another, each when the previous one has ended."""
    for request in requests:
        model.send(request)
        run(model)


def run(model: FaultModel) -> None:
    while model.open:
        model.turn()
        model.check()


def prompts(count: int, length: int) -> list[GenerateRequest]:
    """Return requests that each begin with another token."""
    return [GenerateRequest([n] * length, max_tokens=1, sampling=SamplingParams(seed=1)) for n in range(count)]


def test_a_slot_whose_request_could_not_start_serves_the_next_one_in_the_same_step() -> None:
    model = FaultModel()
    model.arm(Fault.WRITE, times=2)  # of the first request: its start, and the one without the cache
    for request in prompts(NUM_SLOTS + 1, 2):
        model.send(request)
    run(model)
    assert (model.answers, model.errors, model.recoveries) == (NUM_SLOTS, 1, 0)


def test_what_the_host_keeps_is_found_after_the_device_was_lost() -> None:
    model = FaultModel(host_states=100)
    requests = prompts(8, 30)
    serve(model, *requests)
    on_host = [one for one in model.cache.checkpoints() if "host" in one.sizes and one.length == 30]
    assert 0 < len(on_host) < len(requests)
    model.arm(Fault.LOST)
    serve(model, *prompts(1, 2))
    assert (model.errors, model.recoveries) == (1, 1)
    hits = model.cache.stats().hits
    serve(model, *requests)
    assert model.cache.stats().hits - hits == len(on_host)


def test_copies_that_fail_cost_the_device_tier_no_room() -> None:
    model = FaultModel()
    model.arm(Fault.COPY, times=100)
    serve(model, *prompts(2 * SPARE_SLOTS, 20))
    model.faults.disarm()
    serve(model, *prompts(2 * SPARE_SLOTS, 30))
    assert model.cache.stats().tiers[0].copies == SPARE_SLOTS


def test_health_is_not_ok_when_a_client_hears_that_its_step_failed() -> None:
    told: list[str] = []
    shape = tiny_shape(vocab=VOCAB_SIZE)
    fake = FakeRunner(table_logits(VOCAB_SIZE), shape=shape, fail_when=lambda batch: len(batch[0].tokens) > 1)
    scheduler = Scheduler(fake, TOKEN_BYTES.__getitem__)
    worker = Worker(scheduler, lambda _: told.append(worker.health.status), lambda: None, lambda _: fake)
    scheduler.submit(0, prompts(1, 2)[0])
    worker.turn()
    assert told == ["checking"]
    assert worker.health.status == "ok"


@pytest.mark.parametrize("is_opened", [False, True], ids=["before it is opened", "while it is opened"])
def test_a_worker_that_stops_during_a_recovery_is_not_healthy(
    is_opened: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    shape = tiny_shape(vocab=VOCAB_SIZE)
    fake = FakeRunner(table_logits(VOCAB_SIZE), shape=shape, fail_when=lambda _: True)

    def reopen(note_progress: Callable[[], None]) -> Runner:
        seen.append(worker.health.status)
        worker.stop()
        note_progress()
        return fake

    def hear(_: object) -> None:
        if not is_opened:
            worker.stop()

    scheduler = Scheduler(fake, TOKEN_BYTES.__getitem__)
    worker = Worker(scheduler, hear, lambda: seen.append(worker.health.status), reopen)
    scheduler.submit(0, prompts(1, 2)[0])
    worker.start()
    worker.join()
    assert seen == ["recovering"] * (1 + is_opened)
    assert "could not be opened" not in caplog.text
