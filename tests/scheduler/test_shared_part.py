"""A published hard case: requests share a long part, which a few other tokens have shifted.

64 prompts: a system text, then 1,500 tokens of which the first 700 are the same for all. Caches that keep states only
at the borders of blocks lose nearly all hits when the shared part moves by 100 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from rnn_engine.scheduler.checkpoints import CheckpointPlan, PromptPrefix, SingleFlight, plan_checkpoints
from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.tokens import pack
from tests.support.toy_states import ROOT, ToyDevice, toy_logits, toy_shape

SHAPE = toy_shape()
SYSTEM = range(10_000, 10_230)
SHARED = range(20_000, 20_700)
PROMPTS = 64


def prompts(shift: int) -> list[list[int]]:
    """Return the prompts. `shift` more tokens, the same for all, are between the system text and the shared part."""
    return [
        [*SYSTEM, *range(30_000, 30_000 + shift), *SHARED, *range(40_000 + 800 * n, 40_800 + 800 * n)]
        for n in range(PROMPTS)
    ]


def serve(cache: StateCache, device: ToyDevice, prompt: Sequence[int]) -> int:
    """Run one prompt through the cache as a scheduler does; return the number of tokens that need not be run."""
    match = cache.look_up(ROOT, prompt)
    if match.saved > 0:
        cache.restore(match, 0)
    else:
        device.write_state(0, None)
    for point in plan_checkpoints(len(prompt), match.saved, match.known):
        logits = toy_logits(SHAPE, prompt[: point.position]) if point.logits else None
        cache.insert(ROOT, prompt[: point.position], 0, kind=point.kind, logits=logits)
    return match.saved


@pytest.fixture
def device() -> ToyDevice:
    return ToyDevice(SHAPE)


@pytest.mark.parametrize("shift", [0, 100])
def test_after_two_requests_every_other_one_saves_all_that_is_shared(device: ToyDevice, shift: int) -> None:
    cache = make_cache(SHAPE, "model", device)
    saved = [serve(cache, device, prompt) for prompt in prompts(shift)]
    shared = len(SYSTEM) + shift + len(SHARED)
    assert saved == [0, 0] + [shared] * (PROMPTS - 2)


def test_where_each_request_shifts_by_other_tokens_the_system_text_is_saved(device: ToyDevice) -> None:
    cache = make_cache(SHAPE, "model", device)
    texts = [[*SYSTEM, *range(90_000 + 100 * n, 90_100 + 100 * n), *SHARED, n] for n in range(PROMPTS)]
    saved = [serve(cache, device, prompt) for prompt in texts]
    assert saved == [0, 0] + [len(SYSTEM)] * (PROMPTS - 2)


def test_both_shifts_in_turn_under_a_small_bound(device: ToyDevice) -> None:
    """Half of the requests are shifted, and there is room for only eight states: shared states outlive others."""
    cache = make_cache(SHAPE, "model", device, CacheConfig(host_capacity=8 * 480))
    both = [prompt for pair in zip(prompts(0), prompts(100), strict=True) for prompt in pair]
    saved = [serve(cache, device, prompt) for prompt in both]
    assert all(saved[number] >= 930 for number in range(4, len(saved)))


def test_requests_that_arrive_together_run_the_shared_part_once(device: ToyDevice) -> None:
    cache, flights = make_cache(SHAPE, "model", device), SingleFlight()
    waiting = dict(enumerate(prompts(100)))
    tokens_run = 0
    while waiting:
        for number, plan in find_leads(cache, flights, waiting).items():
            tokens_run += len(waiting[number]) - plan.position
            run(cache, plan, waiting.pop(number))
    shared = len(SYSTEM) + 100 + len(SHARED)
    assert tokens_run == shared + PROMPTS * 800


def find_leads(
    cache: StateCache, flights: SingleFlight, waiting: Mapping[int, Sequence[int]]
) -> dict[int, CheckpointPlan]:
    """Return the plans of the prompts that don't wait for another one."""
    leads = {}
    for number, prompt in waiting.items():
        saved, prefix = cache.peek(ROOT, prompt), PromptPrefix(ROOT, pack(prompt))
        wait = flights.find(prefix, saved)
        if wait is None:
            leads[number] = flights.lead(prefix, saved)
        else:
            wait.claim()
    return leads


def run(cache: StateCache, plan: CheckpointPlan, prompt: Sequence[int]) -> None:
    while (point := plan.next()) is not None:
        cache.insert(ROOT, prompt[: point.position], 0, kind=point.kind)
        plan.advance(point.position)
    plan.close()
