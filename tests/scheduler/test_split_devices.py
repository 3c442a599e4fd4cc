"""Two devices that have half of the layers each compute two steps at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from rnn_engine.forward import SplitRunner
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams
from rnn_engine.scheduler import Scheduler
from rnn_engine.types import F32, Batch, Runner, Ticket
from tests.support.models import tiny_shape
from tools.bench.modelled import DeviceClock, ModelledRunner

SHAPE = tiny_shape(layers=2)
_STEP, _TOKEN = 1e-4, 1e-3  # seconds of a step, and of each of its tokens


class ModelledPart(ModelledRunner):
    """A modelled device with one of the model's two layers."""

    def __init__(self, slots: int, clock: DeviceClock) -> None:
        super().__init__(replace(SHAPE, num_layers=1), slots, _STEP / 2, _TOKEN / 2, clock)

    def submit(self, batch: Batch, carried: Sequence[F32] = ()) -> Ticket:
        return super().submit(batch)

    def carry(self, num_tokens: int) -> list[F32]:
        return []


def tokens_a_second(runner: Runner, clock: DeviceClock, sequences: int) -> float:
    scheduler = Scheduler(runner, lambda _: b"?", clock=clock.now)
    for key in range(sequences):
        sampling = SamplingParams(temperature=0.0, seed=0)
        scheduler.submit(key, GenerateRequest([1, 2], max_tokens=100, stop_tokens=(), sampling=sampling))
    left = sequences
    while left:
        left -= sum(isinstance(delivery.outcome, Finished) for delivery in scheduler.step())
    return 100 * sequences / clock.now()


@pytest.mark.parametrize("sequences", [8, 9, 16])
def test_two_devices_run_nearly_twice_as_many_tokens(sequences: int) -> None:
    clock = DeviceClock(work=lambda: 0.0)
    one = tokens_a_second(ModelledRunner(SHAPE, sequences, _STEP, _TOKEN, clock), clock, sequences)
    clock = DeviceClock(work=lambda: 0.0)
    parts = [ModelledPart(sequences, clock) for _ in range(2)]
    two = tokens_a_second(SplitRunner(SHAPE, parts), clock, sequences)  # type: ignore[arg-type]  # they trace nothing
    assert 1.6 * one < two < 2 * one


def test_a_single_sequence_takes_as_long_as_on_one_device() -> None:
    clock = DeviceClock(work=lambda: 0.0)
    one = tokens_a_second(ModelledRunner(SHAPE, 1, _STEP, _TOKEN, clock), clock, 1)
    clock = DeviceClock(work=lambda: 0.0)
    parts = [ModelledPart(1, clock) for _ in range(2)]
    assert tokens_a_second(SplitRunner(SHAPE, parts), clock, 1) == pytest.approx(one)  # type: ignore[arg-type]
