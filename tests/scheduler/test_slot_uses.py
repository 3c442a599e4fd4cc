"""The present uses of the slots."""

from __future__ import annotations

from rnn_engine.requests import GenerateRequest, SamplingParams
from rnn_engine.scheduler import Scheduler
from rnn_engine.telemetry import SlotUse
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_runner import FakeRunner, scripted_logits

TOKENIZER = ByteTokenizer()
GREEDY = SamplingParams(temperature=0.0, seed=0)


def test_a_slot_tells_how_far_its_request_has_come() -> None:
    runner = FakeRunner(scripted_logits(TOKENIZER.size, TOKENIZER.encode("Hello")))
    runner.max_tokens = 4
    scheduler = Scheduler(runner, TOKENIZER.decode_bytes)
    prompt = [1, 2, 3, 4, 5]
    scheduler.submit(7, GenerateRequest(prompt=prompt, sampling=GREEDY, max_tokens=3, cache_scope="ann"))
    assert scheduler.slot_uses() == []
    seen = []
    while scheduler.has_work:
        scheduler.step()
        seen += scheduler.slot_uses()
    assert [(use.run_tokens, use.generated_tokens) for use in seen] == [(4, 0), (5, 1), (6, 2)]
    assert seen[0] == SlotUse(
        slot=0,
        request=7,
        scope="ann",
        paused=False,
        prompt_tokens=5,
        cached_tokens=0,
        run_tokens=4,
        generated_tokens=0,
        max_tokens=3,
    )


def test_a_request_whose_reader_is_behind_is_paused() -> None:
    scheduler = Scheduler(
        FakeRunner(scripted_logits(TOKENIZER.size, TOKENIZER.encode("Hello"))), TOKENIZER.decode_bytes
    )
    scheduler.submit(7, GenerateRequest(prompt=[1], sampling=GREEDY))
    scheduler.step()
    scheduler.pause(7)
    assert [use.paused for use in scheduler.slot_uses()] == [True]
    scheduler.pause(7, False)
    assert [use.paused for use in scheduler.slot_uses()] == [False]
