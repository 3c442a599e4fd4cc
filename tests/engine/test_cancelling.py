"""Many long requests are cancelled at once: all their slots are free within one step."""

from __future__ import annotations

import asyncio

from rnn_engine.engine import Engine
from rnn_engine.loading.parts import assemble
from rnn_engine.requests import GenerateRequest, SamplingParams
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_runner import FakeRunner, scripted_logits
from tests.support.fault_runner import Fault, FaultRunner, Faults

TOKENIZER = ByteTokenizer()
ENDLESS = scripted_logits(TOKENIZER.size, [ord("x") + 1] * 1000)
COUNT = 200
WAIT_SECONDS = 60.0  # until a test that waits in vain fails


async def generate(engine: Engine, max_tokens: int) -> int:
    request = GenerateRequest([1], max_tokens=max_tokens, sampling=SamplingParams(temperature=0, seed=0))
    return sum([1 async for _ in engine.generate(request)])


async def test_slots_of_200_requests_of_10_000_tokens_are_free_within_one_step() -> None:
    faults = Faults()
    fake = FakeRunner(ENDLESS, num_slots=COUNT, max_tokens=COUNT, max_rows=COUNT)
    parts = assemble(FaultRunner(fake, faults), TOKENIZER, model="fake", device="none", weights="f32")
    async with asyncio.timeout(WAIT_SECONDS), Engine(parts) as engine:
        requests = [asyncio.create_task(generate(engine, max_tokens=10_000)) for _ in range(COUNT)]
        while engine.stats().active < COUNT or not fake.batches or len(fake.batches[-1]) < COUNT:
            await asyncio.sleep(0)
        faults.arm(Fault.HANG)  # the step that is running when they leave
        while not faults.hanging.is_set():
            await asyncio.sleep(0)
        steps = len(fake.batches)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        later = [asyncio.create_task(generate(engine, max_tokens=3)) for _ in range(COUNT)]
        while engine.stats().active + engine.stats().queued < COUNT:
            await asyncio.sleep(0)
        faults.release()
        await asyncio.gather(*later)
        assert engine.stats().active == 0
    after = fake.batches[steps:]
    assert [len(batch) for batch in after[:1]] == [COUNT]
    assert {run.slot for run in after[0]} == set(range(COUNT))
    assert len(after) == 3
